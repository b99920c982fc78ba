//! Pods and nodes: namespaces with addresses.

use std::net::IpAddr;
use std::path::PathBuf;

use podwire_kernel::rt::{address, link};
use podwire_kernel::{Host, Netns};
use serde::{Deserialize, Serialize};

use crate::{is_global, Result};

/// What a place is. Between two nodes nothing is promised by a pod network.
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
pub struct Place {
    /// For the report.
    pub name: String,
    /// Which of both.
    pub kind: Kind,
    /// Where it is.
    pub netns: Netns,
    /// Where the others find it.
    pub addresses: Vec<IpAddr>,
    /// All that it has, as one of which it must be seen, each with the largest packet that its link promises to carry.
    pub own: Vec<(IpAddr, u32)>,
}

impl Place {
    /// A pod whose addresses the kernel tells.
    pub fn pod(name: impl Into<String>, netns: impl Into<PathBuf>) -> Result<Place> {
        let netns = Netns::open(netns)?;
        let own = addresses(&netns)?;
        Ok(Place { name: name.into(), kind: Kind::Pod, addresses: only(&own), netns, own })
    }

    /// A node that is found at `addresses`; none: at all that it has.
    pub fn node(name: impl Into<String>, netns: Netns, addresses: Vec<IpAddr>) -> Result<Place> {
        let own = self::addresses(&netns)?;
        let addresses = if addresses.is_empty() { only(&own) } else { addresses };
        Ok(Place { name: name.into(), kind: Kind::Node, addresses, netns, own })
    }

    /// Whether it has an address of that family.
    pub(crate) fn speaks(&self, to: IpAddr) -> bool {
        self.own.iter().any(|(own, _)| own.is_ipv6() == to.is_ipv6())
    }

    /// The largest packet that the link with this address promises to carry; `None` if no link has it.
    pub(crate) fn promise(&self, own: IpAddr) -> Option<u32> {
        self.own.iter().find(|(ip, _)| *ip == own).map(|(_, mtu)| *mtu)
    }
}

fn only(own: &[(IpAddr, u32)]) -> Vec<IpAddr> {
    own.iter().map(|(ip, _)| *ip).collect()
}

/// The addresses that others may use, of links that are up.
fn addresses(netns: &Netns) -> Result<Vec<(IpAddr, u32)>> {
    let mut host = Host::within(Netns::open(netns.path())?)?;
    let links = link::list(&mut host.route)?;
    // Of all links at once: one may go between two questions.
    let all = address::list(&mut host.route, 0)?.into_iter();
    let usable = all.filter(|one| !one.is_tentative() && !one.is_duplicate() && is_global(&one.ip));
    let with_mtu = |one: address::Address| {
        let link = links.iter().find(|link| link.index == one.link && link.is_up())?;
        Some((one.ip, link.mtu))
    };
    Ok(usable.filter_map(with_mtu).collect())
}
