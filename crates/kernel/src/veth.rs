//! veth: a cable with two ends. One end is born in the pod under its final name, the other on the host,
//! by one message: moving an end later would cost the kernel several RCU grace periods.

use std::os::fd::{AsFd, AsRawFd};

use podwire_netlink::rt::link::{self, attribute as a};
use podwire_netlink::{Batch, Message};
use sha2::{Digest, Sha512};

use crate::{Error, Host, Mac, Netns, Owner, Result};

/// Both ends of a new cable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The name of the end on the host.
    pub host: String,
    /// Its hardware address.
    pub host_mac: Mac,
    /// The hardware address of the end in the pod.
    pub pod_mac: Mac,
}

/// What a cable is to be like.
#[derive(Clone, Debug)]
pub struct Veth<'a> {
    /// The name of the pod's end.
    pub name: &'a str,
    /// Whose it is: the host's end gets its name from this, so that it can be found again without a record.
    pub owner: &'a Owner,
    /// MTU of both ends; 0 is the kernel's choice.
    pub mtu: u32,
    /// Hardware address of the pod's end, random if not given.
    pub mac: Option<Mac>,
    /// The bridge that the host's end becomes a port of.
    pub port: Option<Port>,
    /// What the host's end is called, if its name does not follow from the owner.
    pub end: Option<End<'a>>,
}

/// A host's end whose name and hardware address others know. It answers for everybody whom the pod looks for, and forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its hardware address.
    pub mac: Mac,
    /// How many queues of each kind both ends have.
    pub queues: u32,
}

/// A link with less has no IPv6.
const IPV6_MIN_MTU: u32 = 1280;

/// `IPV4_DEVCONF_FORWARDING` and `IPV4_DEVCONF_PROXY_ARP` of linux/ip.h.
const FORWARDING: u16 = 1;
const PROXY_ARP: u16 = 3;

/// A place on a bridge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Port {
    /// The bridge's index.
    pub bridge: u32,
    /// A frame may leave where it came from: needed to reach oneself through a service address.
    pub hairpin: bool,
    /// Kept apart from other isolated ports.
    pub isolated: bool,
    /// There is IPv6.
    pub ipv6: bool,
}

impl Veth<'_> {
    /// Makes the cable: the host's end up and on its bridge, the pod's end down.
    pub fn create(&self, host: &mut Host, pod: &Netns) -> Result<Pair> {
        let pair = Pair {
            host: self.end.map_or_else(|| host_name(self.owner), |end| end.name.into()),
            host_mac: self.end.map_or_else(Mac::random, |end| Ok(end.mac))?,
            pod_mac: self.mac.map_or_else(Mac::random, Ok)?,
        };
        let mut batch = Batch::new();
        batch.push(self.birth(&pair, pod));
        batch.push(self.label(&pair));
        let failed = host.route.batch_each(batch)?;
        let is_born = failed.iter().all(|(message, _)| *message != 0);
        let Some((_, error)) = failed.into_iter().next() else { return Ok(pair) };
        if is_born {
            if let Ok(Some(end)) = host.find_link(&pair.host) {
                let _ = host.route.request(link::delete(&end));
            }
        }
        Err(error.into())
    }

    /// Notes the owner on the node's end, and sets what is set on a link that is there: every change of its own would be told
    /// to everybody who listens. A bridge port speaks for its bridge: it needs no IPv6 address of its
    /// own, and gets none if that is said before its cable is up at the other end too.
    fn label(&self, pair: &Pair) -> Message {
        let message = match self.port.filter(|port| port.hairpin || port.isolated) {
            Some(port) => port_flags(&pair.host, port),
            None => Message::new(libc::RTM_SETLINK, 0, format!("note the owner on {}", pair.host))
                .raw(&link::header(0, 0, 0))
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

    fn birth(&self, pair: &Pair, pod: &Netns) -> Message {
        let doing = format!("create veth pair {} in the pod, {} on the host", self.name, pair.host);
        // A veth uses one queue of each kind, if nobody wants more; the kernel else makes one for each CPU and switches
        // all but one off, for which it waits.
        let count = self.end.map_or(1, |end| end.queues);
        let queues = |m: Message| m.u32(a::NUM_TX_QUEUES, count).u32(a::NUM_RX_QUEUES, count);
        let common =
            |m: Message| queues(m).maybe((self.mtu > 0).then_some(self.mtu), |m, mtu| m.u32(a::MTU, mtu));
        let message = Message::new(libc::RTM_NEWLINK, podwire_netlink::rt::CREATE, doing)
            .raw(&link::header(0, link::UP, link::UP))
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

/// A message that switches on the flags of a bridge port that are wanted.
pub fn port_flags(name: &str, port: Port) -> Message {
    let on = |wanted: bool| wanted.then_some(1);
    Message::new(libc::RTM_NEWLINK, 0, format!("set bridge port flags of {name}"))
        .raw(&link::header(0, 0, 0))
        .string(a::IFNAME, name)
        .nest(a::LINKINFO, |m| {
            m.string(a::INFO_SLAVE_KIND, "bridge").nest(a::INFO_SLAVE_DATA, |m| {
                m.maybe(on(port.hairpin), |m, one| m.u8(a::BRPORT_MODE, one))
                    .maybe(on(port.isolated), |m, one| m.u8(a::BRPORT_ISOLATED, one))
            })
        })
}

/// The name of an owner's end on the host: `veth`, four letters for the network, seven for the container
/// and its interface. The same owner always has the same name, so an end is found without any record.
pub fn host_name(owner: &Owner) -> String {
    format!("{}{}", network_prefix(&owner.network), letters::<7>(&[&owner.container, &owner.ifname]))
}

/// What the names of a network's ends begin with.
pub fn network_prefix(network: &str) -> String {
    format!("veth{}", letters::<4>(&[network]))
}

fn letters<const N: usize>(parts: &[&str]) -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let hash = Sha512::digest(parts.join("/").as_bytes());
    hash.iter().take(N).map(|byte| char::from(ALPHABET[usize::from(byte & 31)])).collect()
}

/// Deletes the cable whose end on the node is `name`, if it is there: to take back a creation.
pub fn remove(name: &str) {
    let delete = || -> Result<()> {
        let mut host = Host::here()?;
        match host.find_link(name)? {
            Some(end) => Ok(host.route.request(link::delete(&end))?),
            None => Ok(()),
        }
    };
    // Whoever takes back has a better error to tell.
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
