//! Pods and nodes: network namespaces with addresses.

use std::net::IpAddr;
use std::path::PathBuf;

use podwire_kernel::rt::address::{self, Address};
use podwire_kernel::rt::link;
use podwire_kernel::{Host, Link, Netns};
use serde::{Deserialize, Serialize};

use crate::{Missing, Result};

/// Pod or node. The network model promises nothing between two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A pod.
    Pod,
    /// A node.
    Node,
}

/// A pod or a node.
#[derive(Debug)]
pub struct Endpoint {
    /// Its name in the report.
    pub name: String,
    /// Pod or node.
    pub kind: Kind,
    /// Its network namespace.
    pub netns: Netns,
    /// The addresses at which the others probe it.
    pub addresses: Vec<IpAddr>,
    /// All its addresses. The others must see one of them as the source of its packets.
    pub own: Vec<OwnAddress>,
    /// The addresses that it should have and that the others cannot probe, each with the reason.
    pub missing: Vec<String>,
}

/// An address and the MTU of its link.
#[derive(Clone, Copy, Debug)]
pub struct OwnAddress {
    /// The address.
    pub ip: IpAddr,
    /// The MTU.
    pub mtu: u32,
}

impl Endpoint {
    /// A pod, with the addresses that the kernel lists. It should have those in `expected`, and at least one.
    pub fn pod(name: impl Into<String>, netns: impl Into<PathBuf>, expected: &[IpAddr]) -> Result<Endpoint> {
        let netns = Netns::open(netns)?;
        let found = Found::read(&netns)?;
        let addresses = found.usable.iter().map(|one| one.ip).collect();
        let mut missing = found.missing(expected);
        if found.usable.is_empty() && missing.is_empty() {
            missing = match found.unusable.is_empty() {
                true => vec!["no interface has an address".into()],
                false => found.unusable.into_iter().map(|(ip, why)| format!("{ip}: {why}")).collect(),
            };
        }
        Ok(Endpoint { name: name.into(), kind: Kind::Pod, addresses, netns, own: found.usable, missing })
    }

    /// A node that the others probe at `addresses`; empty: at all its addresses.
    pub fn node(name: impl Into<String>, netns: Netns, addresses: Vec<IpAddr>) -> Result<Endpoint> {
        let found = Found::read(&netns)?;
        let missing = found.missing(&addresses);
        let is_probed = |ip: &IpAddr| match addresses.is_empty() {
            true => !found.anycast.contains(ip),
            false => addresses.contains(ip),
        };
        let addresses = found.usable.iter().map(|one| one.ip).filter(is_probed).collect();
        Ok(Endpoint { name: name.into(), kind: Kind::Node, addresses, netns, own: found.usable, missing })
    }

    /// What the report says about its missing addresses.
    pub(crate) fn report_missing(&self) -> impl Iterator<Item = Missing> + '_ {
        self.missing.iter().map(|reason| Missing::new(&self.name, self.kind, reason))
    }

    /// Whether it has an address of that family.
    pub(crate) fn has_family_of(&self, to: IpAddr) -> bool {
        self.own.iter().any(|one| one.ip.is_ipv6() == to.is_ipv6())
    }

    /// The MTU of the link with this address; `None` if no link has it.
    pub(crate) fn mtu_of(&self, own: IpAddr) -> Option<u32> {
        self.own.iter().find(|one| one.ip == own).map(|one| one.mtu)
    }
}

/// The global addresses of a namespace.
struct Found {
    usable: Vec<OwnAddress>,
    /// Addresses that carry no packets now, each with the reason.
    unusable: Vec<(IpAddr, String)>,
    /// Addresses to which the kernel accepts no TCP connection. The device flannel-v6.1 has the first address of the node's
    /// pod CIDR; as soon as the bridge of the pods has an address of that network, it is the anycast address of the routers
    /// there (RFC 4291, 2.6.1).
    anycast: Vec<IpAddr>,
}

impl Found {
    fn read(netns: &Netns) -> Result<Found> {
        let mut host = Host::within(Netns::open(netns.path())?)?;
        let links = link::list(&mut host.route)?;
        // Of all links in one request: a link may disappear between two requests.
        let all = address::list(&mut host.route, 0)?;
        let anycast = match address::list_anycast(&mut host.route) {
            Err(error) if error.is_unsupported() => Vec::new(),
            listed => listed?.into_iter().map(IpAddr::V6).collect(),
        };
        let mut found = Found { usable: Vec::new(), unusable: Vec::new(), anycast };
        for one in all.iter().filter(|one| is_global(&one.ip)) {
            let Some(link) = links.iter().find(|link| link.index == one.link) else { continue };
            match obstacle(one, link) {
                None => found.usable.push(OwnAddress { ip: one.ip, mtu: link.mtu }),
                Some(why) => found.unusable.push((one.ip, why)),
            }
        }
        Ok(found)
    }

    /// Those of `expected` that cannot be probed, each with the reason.
    fn missing(&self, expected: &[IpAddr]) -> Vec<String> {
        let absent = expected.iter().filter(|ip| !self.usable.iter().any(|one| one.ip == **ip));
        let reason = |ip: &IpAddr| {
            let unusable = self.unusable.iter().find(|(one, _)| one == ip);
            let why = unusable.map_or("no interface has this address", |(_, why)| why);
            format!("{ip}: {why}")
        };
        absent.map(reason).collect()
    }
}

/// Why an address carries no packets now.
fn obstacle(address: &Address, link: &Link) -> Option<String> {
    if !link.is_up() {
        return Some(format!("interface {} is down", link.name));
    }
    if address.is_duplicate() {
        return Some(format!("another host on the link of {} has this address", link.name));
    }
    address.is_tentative().then(|| format!("duplicate address detection on {} is not finished", link.name))
}

/// Whether other hosts can use an address: not loopback, link-local or unspecified.
fn is_global(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local() && !ip.is_unspecified(),
        IpAddr::V6(ip) => !ip.is_loopback() && ip.segments()[0] & 0xffc0 != 0xfe80 && !ip.is_unspecified(),
    }
}
