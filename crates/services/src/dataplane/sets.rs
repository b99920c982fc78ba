//! The sets and maps of the table. Each exists once for each family: `frontends_4`, `frontends_6`.

use std::time::Duration;

use podwire_ip::IpFamily;
use podwire_netlink::nft::{Family, IpTerms, Set, Table, Transaction, Type};

/// The table with all Services.
pub const TABLE: Table = Table::named(Family::Inet, "podwire_services");

/// The number of clients whose endpoint is remembered, in each family.
const MAX_AFFINITIES: u32 = 1 << 18;
/// The longest affinity timeout. The rules that add an element set its own timeout.
const MAX_AFFINITY: Duration = Duration::from_secs(86400);

/// A set or map. A *frontend* is an address, a protocol and a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum SetId {
    /// Frontend → chain for its number of endpoints.
    Frontends,
    /// The same for clients on this node, with the external traffic policy `Local`.
    FrontendsForNode,
    /// The same for other clients, with the policy `Local`.
    FrontendsForOthers,
    /// Frontend and index → endpoint.
    Endpoints,
    /// Client and frontend → endpoint. Rules add the elements.
    Affinity,
    /// Frontend → chain for its affinity timeout.
    AffinityTimeouts,
    /// Frontends whose clients are all masqueraded.
    Masquerade,
    /// Frontends with the external traffic policy `Local`: of their clients only this node's processes are masqueraded.
    LocalPolicy,
    /// Addresses of local endpoints, each twice: a connection from a pod to itself.
    Hairpin,
    /// Cluster IPs.
    ClusterIps,
    /// Ranges of cluster IPs.
    ServiceCidrs,
    /// Networks of this node's pods.
    PodNetworks,
    /// Frontends without endpoints.
    Rejected,
    /// Frontends without endpoints for the clients that get here.
    Dropped,
    /// Frontends with source ranges.
    Restricted,
    /// Frontend and client network.
    AllowedSources,
}

impl SetId {
    pub const ALL: [SetId; 16] = [
        SetId::Frontends,
        SetId::FrontendsForNode,
        SetId::FrontendsForOthers,
        SetId::Endpoints,
        SetId::Affinity,
        SetId::AffinityTimeouts,
        SetId::Masquerade,
        SetId::LocalPolicy,
        SetId::Hairpin,
        SetId::ClusterIps,
        SetId::ServiceCidrs,
        SetId::PodNetworks,
        SetId::Rejected,
        SetId::Dropped,
        SetId::Restricted,
        SetId::AllowedSources,
    ];

    fn base_name(self) -> &'static str {
        match self {
            SetId::Frontends => "frontends",
            SetId::FrontendsForNode => "frontends_for_node",
            SetId::FrontendsForOthers => "frontends_for_others",
            SetId::Endpoints => "endpoints",
            SetId::Affinity => "affinity",
            SetId::AffinityTimeouts => "affinity_timeouts",
            SetId::Masquerade => "masquerade",
            SetId::LocalPolicy => "local_policy",
            SetId::Hairpin => "hairpin",
            SetId::ClusterIps => "cluster_ips",
            SetId::ServiceCidrs => "service_cidrs",
            SetId::PodNetworks => "pod_networks",
            SetId::Rejected => "rejected",
            SetId::Dropped => "dropped",
            SetId::Restricted => "restricted",
            SetId::AllowedSources => "allowed_sources",
        }
    }

    pub fn name(self, family: IpFamily) -> String {
        format!("{}_{}", self.base_name(), family.digit())
    }

    /// Adds the set, unless it exists.
    pub fn add(self, change: &mut Transaction, family: IpFamily) {
        let ip = family.address_type();
        let name = self.name(family);
        let frontend = [ip, Type::Protocol, Type::Port];
        let set = match self {
            SetId::Frontends
            | SetId::FrontendsForNode
            | SetId::FrontendsForOthers
            | SetId::AffinityTimeouts => Set::verdicts(&name, &frontend),
            SetId::Endpoints => {
                // The index has the type `mark`, because nft prints no number of its own in a concatenation.
                let key = [ip, Type::Protocol, Type::Port, Type::Mark];
                return change.add_set(&TABLE, &Set::map(&name, &key, &[ip, Type::Port]));
            }
            SetId::Affinity => {
                let key = [ip, ip, Type::Protocol, Type::Port];
                let endpoint = [ip, Type::Port];
                let map = Set::map(&name, &key, &endpoint).forgetting(MAX_AFFINITY).dynamic(MAX_AFFINITIES);
                return change.add_set(&TABLE, &map);
            }
            SetId::Masquerade | SetId::LocalPolicy | SetId::Rejected | SetId::Dropped | SetId::Restricted => {
                Set::of(&name, &frontend)
            }
            SetId::AllowedSources => {
                let key = [ip, Type::Protocol, Type::Port, ip];
                return change.add_set(&TABLE, &Set::ranges(&name, &key));
            }
            SetId::Hairpin => return change.add_set(&TABLE, &Set::of(&name, &[ip, ip])),
            SetId::ClusterIps => return change.add_set(&TABLE, &Set::of(&name, &[ip])),
            SetId::ServiceCidrs | SetId::PodNetworks => {
                return change.add_set(&TABLE, &Set::ranges(&name, &[ip]))
            }
        };
        change.add_set(&TABLE, &set);
    }
}
