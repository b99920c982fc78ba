//! Pods and nodes: network namespaces with addresses.

use std::net::IpAddr;
use std::path::PathBuf;

use podwire_kernel::rt::{address, link};
use podwire_kernel::{Host, Netns};
use serde::{Deserialize, Serialize};

use crate::Result;

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
    /// A pod, with the addresses that the kernel lists.
    pub fn pod(name: impl Into<String>, netns: impl Into<PathBuf>) -> Result<Endpoint> {
        let netns = Netns::open(netns)?;
        let own = addresses(&netns)?;
        Ok(Endpoint { name: name.into(), kind: Kind::Pod, addresses: ips(&own), netns, own })
    }

    /// A node that the others probe at `addresses`; empty: at all its addresses.
    pub fn node(name: impl Into<String>, netns: Netns, addresses: Vec<IpAddr>) -> Result<Endpoint> {
        let own = self::addresses(&netns)?;
        let addresses = if addresses.is_empty() { ips(&own) } else { addresses };
        Ok(Endpoint { name: name.into(), kind: Kind::Node, addresses, netns, own })
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

fn ips(own: &[OwnAddress]) -> Vec<IpAddr> {
    own.iter().map(|one| one.ip).collect()
}

/// The global addresses of links that are up.
fn addresses(netns: &Netns) -> Result<Vec<OwnAddress>> {
    let mut host = Host::within(Netns::open(netns.path())?)?;
    let links = link::list(&mut host.route)?;
    // Of all links in one request: a link may disappear between two requests.
    let all = address::list(&mut host.route, 0)?.into_iter();
    let usable = all.filter(|one| !one.is_tentative() && !one.is_duplicate() && is_global(&one.ip));
    let with_mtu = |one: address::Address| {
        let link = links.iter().find(|link| link.index == one.link && link.is_up())?;
        Some(OwnAddress { ip: one.ip, mtu: link.mtu })
    };
    Ok(usable.filter_map(with_mtu).collect())
}

/// Whether other hosts can use an address: not loopback, link-local or unspecified.
fn is_global(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local() && !ip.is_unspecified(),
        IpAddr::V6(ip) => !ip.is_loopback() && ip.segments()[0] & 0xffc0 != 0xfe80 && !ip.is_unspecified(),
    }
}
