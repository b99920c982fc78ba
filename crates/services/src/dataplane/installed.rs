//! The Services in the kernel, read back: what packets meet, also when no agent runs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::{IpNet, Ipv4Subnets, Ipv6Subnets};
use podwire_ip::IpFamily;
use podwire_netlink::nft::{self, Data, Element, Verdict};
use podwire_netlink::Socket;

use super::counted_chains::CountedChain;
use super::elements::{comment, Elements};
use super::found::{self, frontend, ip_addr};
use super::sets::{SetId, TABLE};
use crate::{Backend, Desired, Error, Frontend, Reach, Result};

/// How often the table is read again because it changed meanwhile.
const ATTEMPTS: usize = 100;

/// The Services in the kernel of the calling thread's network namespace; `None` if there is no table. The kernel does not
/// have everything: `serving_endpoints`, health checks and problems are empty, and [`Backend::any_endpoint`] is false
/// only if clients are rejected.
pub fn installed() -> Result<Option<Desired>> {
    let mut socket = Socket::netfilter()?;
    for _ in 0..ATTEMPTS {
        let generation = nft::generation(&mut socket)?;
        if !nft::has_table(&mut socket, &TABLE)? {
            return Ok(None);
        }
        let elements = found::read(&mut socket)?;
        if nft::generation(&mut socket)? == generation {
            return Ok(Some(Table(&elements).desired()));
        }
    }
    Err(Error::Changing(ATTEMPTS))
}

/// The first frontend that packets do not find in the kernel as `desired` has it, and why; `None` if all agree.
pub fn difference(installed: &Desired, desired: &Desired) -> Option<String> {
    for (frontend, backend) in &desired.frontends {
        let Some(found) = installed.frontends.get(frontend) else {
            return Some(format!("{frontend} of Service {} is not in the kernel", backend.service));
        };
        if !is_same(found, backend) {
            return Some(format!("{frontend} of Service {} differs in the kernel", backend.service));
        }
    }
    let extra = installed.frontends.iter().find(|(frontend, _)| !desired.frontends.contains_key(frontend));
    extra.map(|(frontend, backend)| {
        format!("{frontend} of Service {} is still in the kernel", backend.service)
    })
}

fn is_same(found: &Backend, wanted: &Backend) -> bool {
    let sorted = |endpoints: &[std::net::SocketAddr]| endpoints.iter().copied().collect::<BTreeSet<_>>();
    found.service == comment(&wanted.service)
        && found.reach == wanted.reach
        && found.refusal() == wanted.refusal()
        && found.affinity == wanted.affinity
        && found.source_ranges == wanted.source_ranges
        && sorted(&found.endpoints) == sorted(&wanted.endpoints)
        && sorted(&found.local_endpoints) == sorted(&wanted.local_endpoints)
}

/// The elements of the table.
struct Table<'a>(&'a Elements);

impl Table<'_> {
    fn desired(&self) -> Desired {
        let mut desired = Desired::default();
        for family in IpFamily::ALL {
            desired.frontends.extend(self.frontends(family));
            desired.cluster_ips.extend(self.addresses(SetId::ClusterIps, family));
            desired.local_endpoint_ips.extend(self.addresses(SetId::Hairpin, family));
            desired.service_cidrs.extend(self.networks(SetId::ServiceCidrs, family));
            desired.pod_networks.extend(self.networks(SetId::PodNetworks, family));
        }
        desired
    }

    fn elements(&self, set: SetId, family: IpFamily) -> impl Iterator<Item = &Element> {
        let all = self.0.range((set, family, Vec::new(), false)..);
        all.take_while(move |((of, its, ..), _)| *of == set && *its == family).map(|(_, element)| element)
    }

    /// A frontend is in a map of frontends, or in a set of those without endpoints, or in both.
    fn frontends(&self, family: IpFamily) -> BTreeMap<Frontend, Arc<Backend>> {
        let named = [
            SetId::Frontends,
            SetId::FrontendsForNode,
            SetId::FrontendsForOthers,
            SetId::Rejected,
            SetId::Dropped,
        ];
        let mut names: BTreeMap<Frontend, String> = BTreeMap::new();
        for element in named.into_iter().flat_map(|set| self.elements(set, family)) {
            let frontend = frontend(element.key.bytes(), family);
            names.extend(frontend.map(|frontend| (frontend, element.comment.clone().unwrap_or_default())));
        }
        let members = |set: SetId| -> BTreeSet<Frontend> {
            self.elements(set, family).filter_map(|element| frontend(element.key.bytes(), family)).collect()
        };
        let (to_all, to_others) = (members(SetId::Masquerade), members(SetId::LocalPolicy));
        let (rejected, affinities, ranges) =
            (members(SetId::Rejected), self.affinities(family), self.source_ranges(family));
        let backend = |(frontend, service): (Frontend, String)| {
            let [endpoints, local_endpoints] = found::order(self.0, &frontend);
            let reach = if to_all.contains(&frontend) {
                Reach::Cluster
            } else if to_others.contains(&frontend) {
                Reach::Local
            } else {
                Reach::ClusterIp
            };
            let backend = Backend {
                service,
                reach,
                endpoints,
                local_endpoints,
                serving_endpoints: Vec::new(),
                any_endpoint: !rejected.contains(&frontend),
                affinity: affinities.get(&frontend).copied(),
                source_ranges: ranges.get(&frontend).cloned(),
            };
            (frontend, Arc::new(backend))
        };
        names.into_iter().map(backend).collect()
    }

    fn affinities(&self, family: IpFamily) -> BTreeMap<Frontend, Duration> {
        let timeout = |element: &Element| {
            let Data::Verdict(Verdict::Goto(chain)) = &element.data else { return None };
            let frontend = frontend(element.key.bytes(), family)?;
            Some((frontend, CountedChain::affinity_timeout(family, chain)?))
        };
        self.elements(SetId::AffinityTimeouts, family).filter_map(timeout).collect()
    }

    fn source_ranges(&self, family: IpFamily) -> BTreeMap<Frontend, Vec<IpNet>> {
        let restricted = self.elements(SetId::Restricted, family);
        let mut all: BTreeMap<Frontend, Vec<IpNet>> = restricted
            .filter_map(|element| Some((frontend(element.key.bytes(), family)?, Vec::new())))
            .collect();
        for element in self.elements(SetId::AllowedSources, family) {
            let source = |key: &[u8]| ip_addr(key.get(frontend_length(family)..)?, family);
            let first = source(element.key.bytes());
            let last = element.last.as_ref().and_then(|last| source(last.bytes()));
            let owner = frontend(element.key.bytes(), family).and_then(|frontend| all.get_mut(&frontend));
            if let (Some(owner), Some(first), Some(last)) = (owner, first, last) {
                owner.extend(networks(first, last));
            }
        }
        all.values_mut().for_each(|ranges| *ranges = IpNet::aggregate(ranges));
        all
    }

    fn addresses(&self, set: SetId, family: IpFamily) -> impl Iterator<Item = IpAddr> + '_ {
        let length = usize::from(family.bits() / 8);
        self.elements(set, family)
            .filter_map(move |element| ip_addr(element.key.bytes().get(..length)?, family))
    }

    /// A range is an element with its first address, and one with the first address after it unless it is the last one.
    fn networks(&self, set: SetId, family: IpFamily) -> Vec<IpNet> {
        let boundaries = |ends: bool| -> BTreeSet<IpAddr> {
            let some = self.elements(set, family).filter(|element| element.ends_range == ends);
            some.filter_map(|element| ip_addr(element.key.bytes(), family)).collect()
        };
        let (firsts, ends) = (boundaries(false), boundaries(true));
        let range = |first: IpAddr| {
            let end = ends.iter().find(|end| **end > first).and_then(|end| before(*end));
            networks(first, end.unwrap_or_else(|| last_address(family)))
        };
        IpNet::aggregate(&firsts.into_iter().flat_map(range).collect::<Vec<_>>())
    }
}

/// The length of a frontend's key: protocol and port take four bytes each.
fn frontend_length(family: IpFamily) -> usize {
    usize::from(family.bits() / 8) + 8
}

fn networks(first: IpAddr, last: IpAddr) -> Vec<IpNet> {
    match (first, last) {
        (IpAddr::V4(first), IpAddr::V4(last)) => Ipv4Subnets::new(first, last, 0).map(IpNet::V4).collect(),
        (IpAddr::V6(first), IpAddr::V6(last)) => Ipv6Subnets::new(first, last, 0).map(IpNet::V6).collect(),
        _ => Vec::new(),
    }
}

fn before(ip: IpAddr) -> Option<IpAddr> {
    match ip {
        IpAddr::V4(ip) => u32::from(ip).checked_sub(1).map(|ip| IpAddr::V4(ip.into())),
        IpAddr::V6(ip) => u128::from(ip).checked_sub(1).map(|ip| IpAddr::V6(ip.into())),
    }
}

fn last_address(family: IpFamily) -> IpAddr {
    match family {
        IpFamily::V4 => IpAddr::V4(std::net::Ipv4Addr::BROADCAST),
        IpFamily::V6 => IpAddr::V6(u128::MAX.into()),
    }
}
