//! The firewall rules of flannel's backends.

use ipnet::IpNet;
use podwire_kernel::firewall::cluster::{MasqueradeScope, Rules};

use crate::cluster::Cluster;

/// The firewall options, with the names of flannel's flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirewallOptions {
    /// Masquerade traffic from pods to addresses outside the cluster (`--ip-masq`).
    pub masquerade: bool,
    /// Masquerade with random ports (unless `--ip-masq-fully-random-disable`).
    pub random_ports: bool,
    /// Let pod traffic pass the FORWARD chain (`--iptables-forward-rules`).
    pub forward: bool,
    /// Drop packets to unused pod addresses of this node instead of sending them along the default route
    /// (`--ip-blackhole-route`).
    pub blackhole: bool,
}

impl Default for FirewallOptions {
    fn default() -> FirewallOptions {
        FirewallOptions { masquerade: false, random_ports: true, forward: true, blackhole: false }
    }
}

/// The rules for nodes with one pod CIDR of each family. Pod CIDRs outside the cluster's networks count as the
/// cluster's.
pub(crate) fn rules(cluster: &Cluster, options: &FirewallOptions) -> Rules {
    let FirewallOptions { masquerade, random_ports, forward, .. } = *options;
    let outside = |net: &&IpNet| !cluster.networks.iter().any(|network| network.contains(*net));
    let peers = cluster.peers.iter().flat_map(|peer| peer.subnets.iter().map(|subnet| &subnet.pod_cidr));
    let local: Vec<IpNet> = cluster.local.subnets.iter().map(|subnet| subnet.pod_cidr).collect();
    Rules {
        cluster: cluster.networks.iter().chain(peers.chain(&local).filter(outside)).copied().collect(),
        local,
        masquerade,
        random_ports,
        forward,
        scope: MasqueradeScope::PodCidrs,
    }
}
