//! veth pairs. One message creates one end in the pod under its final name and the other on the host: moving an end
//! later costs several RCU grace periods.

use std::os::fd::{AsFd, AsRawFd};

use podwire_netlink::rt::link::{self, attribute as a, Link};
use podwire_netlink::rt::tc::program;
use podwire_netlink::{Batch, Message};
use sha2::{Digest, Sha512};

use crate::error::{Error, Result};
use crate::host::Host;
use crate::mac::Mac;
use crate::netns::Netns;
use crate::owner::Owner;

/// Both ends of a new veth pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The name of the end on the host.
    pub host: String,
    /// Its hardware address.
    pub host_mac: Mac,
    /// The hardware address of the end in the pod.
    pub pod_mac: Mac,
}

/// A veth pair to create.
#[derive(Clone, Debug)]
pub struct Veth<'a> {
    /// The name of the pod's end.
    pub name: &'a str,
    /// The owner. The name of the host's end is derived from it, so that it is found without a record.
    pub owner: &'a Owner,
    /// MTU of both ends; 0 is the kernel's default.
    pub mtu: u32,
    /// Hardware address of the pod's end; `None` is a random one.
    pub mac: Option<Mac>,
    /// The bridge port that the host's end becomes.
    pub port: Option<Port>,
    /// The host's end, if its name is not derived from the owner.
    pub end: Option<End<'a>>,
}

/// A host's end with a given name and hardware address. It forwards, and answers ARP requests for all addresses (proxy
/// ARP).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its hardware address.
    pub mac: Mac,
    /// The number of transmit and receive queues of both ends.
    pub queues: u32,
}

/// A link with a smaller MTU has no IPv6.
const IPV6_MIN_MTU: u32 = 1280;

/// `IPV4_DEVCONF_FORWARDING` and `IPV4_DEVCONF_PROXY_ARP` of linux/ip.h.
const FORWARDING: u16 = 1;
const PROXY_ARP: u16 = 3;

/// A bridge port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Port {
    /// The bridge's index.
    pub bridge: u32,
    /// Frames may leave by the port they came from: needed for a pod that reaches itself through a Service.
    pub hairpin: bool,
    /// Isolated from other isolated ports.
    pub isolated: bool,
    /// Whether the bridge has IPv6.
    pub ipv6: bool,
}

impl Veth<'_> {
    /// Creates the pair: the host's end up and on its bridge, the pod's end down.
    pub fn create(&self, host: &mut Host, pod: &Netns) -> Result<Pair> {
        let pair = self.pair()?;
        let mut batch = Batch::new();
        batch.push(self.creation(&pair, pod, link::UP));
        batch.push(self.label(&pair));
        let failed = host.route.batch_each(batch)?;
        let is_created = failed.iter().all(|(message, _)| *message != 0);
        let Some((_, error)) = failed.into_iter().next() else { return Ok(pair) };
        if is_created {
            delete_end(host, &pair);
        }
        Err(error.into())
    }

    /// Creates the pair like [`Veth::create`], with the qdisc for the programs of the fast path on the host's end, if the
    /// kernel has it.
    pub fn create_with_clsact(&self, host: &mut Host, pod: &Netns) -> Result<Pair> {
        let pair = self.pair()?;
        host.route.request(self.creation(&pair, pod, 0))?;
        let configured = self.prepare(host, &pair);
        if configured.is_err() {
            delete_end(host, &pair);
        }
        configured.map(|()| pair)
    }

    /// Adding a qdisc takes longer, and loses packets, if the device is up.
    fn prepare(&self, host: &mut Host, pair: &Pair) -> Result<()> {
        let end = host.get_link(&pair.host)?;
        let mut batch = Batch::new();
        batch.push(program::add_clsact(end.index, &end.name));
        batch.push(self.label(pair));
        let failed = host.route.batch_each(batch)?;
        // Without the qdisc the pod takes the normal path.
        match failed.into_iter().find(|(message, _)| *message > 0) {
            Some((_, error)) => Err(error.into()),
            None => Ok(()),
        }
    }

    fn pair(&self) -> Result<Pair> {
        Ok(Pair {
            host: self.end.map_or_else(|| host_name(self.owner), |end| end.name.into()),
            host_mac: self.end.map_or_else(Mac::random, |end| Ok(end.mac))?,
            pod_mac: self.mac.map_or_else(Mac::random, Ok)?,
        })
    }

    /// Sets the alias of the host's end and everything that needs an existing link, and sets it up, in one message: each
    /// change sends a notice to all subscribers. A bridge port needs no IPv6 address of its own; it gets none if that is set before
    /// the pod's end is up.
    fn label(&self, pair: &Pair) -> Message {
        let message = match self.port.filter(|port| port.hairpin || port.isolated) {
            Some(port) => port_flags(&pair.host, port),
            None => Message::new(libc::RTM_SETLINK, 0, format!("set the owner of {}", pair.host))
                .raw(&link::header(0, link::UP, link::UP))
                .string(a::IFNAME, &pair.host),
        };
        let has_ipv6 = |port: &Port| port.ipv6 && (self.mtu == 0 || self.mtu >= IPV6_MIN_MTU);
        message
            .string(a::IFALIAS, &self.owner.comment())
            .maybe(self.port.filter(has_ipv6), |m, _| {
                m.nest(a::AF_SPEC, |m| m.nest(libc::AF_INET6 as u16, |m| m.u8(a::INET6_ADDR_GEN_MODE, 1)))
            })
            .maybe(self.end, |m, _| {
                let knobs = |m: Message| m.u32(FORWARDING, 1).u32(PROXY_ARP, 1);
                m.nest(a::AF_SPEC, |m| m.nest(libc::AF_INET as u16, |m| m.nest(a::INET_CONF, knobs)))
            })
    }

    fn creation(&self, pair: &Pair, pod: &Netns, flags: u32) -> Message {
        let doing = format!("create veth pair {} in the pod, {} on the host", self.name, pair.host);
        // Without these attributes the kernel creates one queue of each kind per CPU and disables all but one, which
        // takes time.
        let count = self.end.map_or(1, |end| end.queues);
        let queues = |m: Message| m.u32(a::NUM_TX_QUEUES, count).u32(a::NUM_RX_QUEUES, count);
        let common =
            |m: Message| queues(m).maybe((self.mtu > 0).then_some(self.mtu), |m, mtu| m.u32(a::MTU, mtu));
        let message = Message::new(libc::RTM_NEWLINK, podwire_netlink::rt::CREATE, doing)
            .raw(&link::header(0, flags, link::UP))
            .string(a::IFNAME, &pair.host)
            .bytes(a::ADDRESS, &pair.host_mac.0)
            .maybe(self.port, |m, port| m.u32(a::MASTER, port.bridge));
        common(message).nest(a::LINKINFO, |m| {
            m.string(a::INFO_KIND, "veth").nest(a::INFO_DATA, |m| {
                m.nest(a::VETH_INFO_PEER, |mut m| {
                    m.push_raw(&link::header(0, 0, 0));
                    common(
                        m.string(a::IFNAME, self.name)
                            .bytes(a::ADDRESS, &pair.pod_mac.0)
                            .u32(a::NET_NS_FD, pod.as_fd().as_raw_fd() as u32),
                    )
                })
            })
        })
    }
}

/// Reverts the creation of a pair. The caller reports the error that made this necessary.
fn delete_end(host: &mut Host, pair: &Pair) {
    if let Ok(Some(end)) = host.find_link(&pair.host) {
        let _ = host.route.request(link::delete(&end));
    }
}

/// A message that sets the flags of a bridge port, and sets it up.
pub fn port_flags(name: &str, port: Port) -> Message {
    let on = |wanted: bool| wanted.then_some(1);
    Message::new(libc::RTM_NEWLINK, 0, format!("set bridge port flags of {name}"))
        .raw(&link::header(0, link::UP, link::UP))
        .string(a::IFNAME, name)
        .nest(a::LINKINFO, |m| {
            m.string(a::INFO_SLAVE_KIND, "bridge").nest(a::INFO_SLAVE_DATA, |m| {
                m.maybe(on(port.hairpin), |m, one| m.u8(a::BRPORT_MODE, one))
                    .maybe(on(port.isolated), |m, one| m.u8(a::BRPORT_ISOLATED, one))
            })
        })
}

/// The name of an owner's end on the host: `veth`, four letters for the network, seven for the container and its
/// interface. The same owner always has the same name, so the end is found without a record.
pub fn host_name(owner: &Owner) -> String {
    format!("{}{}", network_prefix(&owner.network), letters::<7>(&[&owner.container, &owner.ifname]))
}

/// The prefix of the names of a network's ends.
pub fn network_prefix(network: &str) -> String {
    format!("veth{}", letters::<4>(&[network]))
}

fn letters<const N: usize>(parts: &[&str]) -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let hash = Sha512::digest(parts.join("/").as_bytes());
    hash.iter().take(N).map(|byte| char::from(ALPHABET[usize::from(byte & 31)])).collect()
}

/// The other end on `node` of a veth in a pod, if `inside` is a veth and its other end is there.
pub fn find_peer(node: &mut Host, inside: &Link) -> Result<Option<Link>> {
    let Some(index) = inside.link.filter(|_| inside.kind == "veth") else { return Ok(None) };
    let end = link::find_index(&mut node.route, index)?;
    // The index may belong to a link in a third namespace.
    Ok(end.filter(|end| end.kind == "veth" && end.link == Some(inside.index)))
}

/// Deletes the pair whose end on the node is `name`, if it exists, to revert its creation.
pub fn remove(name: &str) {
    let delete = || -> Result<()> {
        let mut host = Host::here()?;
        match host.find_link(name)? {
            Some(end) => Ok(host.route.request(link::delete(&end))?),
            None => Ok(()),
        }
    };
    // The caller reports the error that made this necessary.
    let _ = delete();
}

/// Whether a failed creation means that the pod has an interface of that name.
pub fn name_taken(pod: &mut Host, name: &str, error: &Error) -> bool {
    error.is_exists() && matches!(pod.find_link(name), Ok(Some(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_and_depend_on_every_part() {
        let owner =
            |n: &str, c: &str, i: &str| Owner { network: n.into(), container: c.into(), ifname: i.into() };
        let name = host_name(&owner("net", "id", "eth0"));
        assert_eq!(name.len(), 15);
        assert!(name.starts_with(&network_prefix("net")));
        for other in [owner("net2", "id", "eth0"), owner("net", "id2", "eth0"), owner("net", "id", "eth1")] {
            assert_ne!(host_name(&other), name);
        }
    }
}
