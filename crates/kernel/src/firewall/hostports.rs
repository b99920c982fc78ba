//! Host ports: a port of the node leads to a port of a pod.
//!
//! The destination of a connection to one of the node's own addresses is looked up in a map by protocol and
//! port (and by address, for maps of one address only) and rewritten. Sets say for which of those the source
//! must be rewritten too, so that the answers come back through the node.

mod condition;
mod skeleton;

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use podwire_netlink::nft::{self, Data, Element, Family, Table, Transaction, Value};
use podwire_netlink::{attr, ct, Socket};

use super::elements::{self, is_of, Entry, Found, Plan};
use super::{is_alone, named_for};
use crate::owner::Owner;
use crate::{Error, Result};

pub use condition::{Condition, Part};

pub(super) use condition::is_table;

/// Maps from protocol and port, for IPv4 and IPv6.
const ANY: [&str; 2] = ["ports4", "ports6"];
/// Maps from address, protocol and port.
const HOST: [&str; 2] = ["hostports4", "hostports6"];
/// Pods' addresses, protocols and ports whose clients all look like the node.
const SNAT_ALL: [&str; 2] = ["masquerade4", "masquerade6"];

/// A pod's address twice, and its ports: what a pod that is alone in its network sends to itself through the node.
const SELF: [&str; 2] = ["self4", "self6"];

/// A transport protocol with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    const ALL: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

    /// Its name, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        }
    }

    /// The protocol of this name, in lower case.
    pub fn from_name(name: &str) -> Option<Protocol> {
        Protocol::ALL.into_iter().find(|protocol| protocol.name() == name)
    }

    /// Its number in an IP header (`linux/in.h`).
    pub fn number(self) -> u8 {
        match self {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Sctp => 132,
        }
    }

    fn from_number(number: u8) -> Option<Protocol> {
        Protocol::ALL.into_iter().find(|protocol| protocol.number() == number)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A port of the node that leads to a port of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortMap {
    /// TCP, UDP or SCTP.
    pub protocol: Protocol,
    /// For one address of the node only. An address of the other family than the pod's maps nothing.
    pub host_ip: Option<IpAddr>,
    /// The node's port.
    pub host_port: u16,
    /// The pod's address, with the prefix of its network.
    pub pod: IpNet,
    /// The pod's port.
    pub pod_port: u16,
}

/// Whose connections, to the pod, get the node's address as their source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Snat {
    /// Nobody's. Then neither the node's loopback nor the pod's neighbours can use the port.
    Off,
    /// Those of the pod's network and of the node's loopback.
    #[default]
    Local,
    /// All.
    All,
}

/// What holds for all port maps of a network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Options {
    /// Whose source is rewritten.
    pub snat: Snat,
    /// All of them must hold for an IPv4 packet to be mapped.
    pub conditions_v4: Vec<Condition>,
    /// All of them must hold for an IPv6 packet to be mapped.
    pub conditions_v6: Vec<Condition>,
}

impl PortMap {
    /// Index of its family in the names of maps.
    fn half(&self) -> usize {
        usize::from(self.pod.addr().is_ipv6())
    }

    /// The one address it is for; `0.0.0.0` and `::` mean any.
    fn address(&self) -> Option<IpAddr> {
        self.host_ip.filter(|addr| !addr.is_unspecified())
    }

    fn maps_something(&self) -> bool {
        self.host_ip.is_none_or(|addr| addr.is_ipv4() == self.pod.addr().is_ipv4())
    }

    /// The map it belongs in, and its key there.
    fn key(&self) -> (&'static str, Value) {
        match self.address() {
            None => (ANY[self.half()], Value::protocol(self.protocol.number()).and_port(self.host_port)),
            Some(addr) => {
                let key = Value::ip(addr).and_protocol(self.protocol.number()).and_port(self.host_port);
                (HOST[self.half()], key)
            }
        }
    }

    fn data(&self) -> Value {
        Value::ip(self.pod.addr()).and_port(self.pod_port)
    }

    /// What the pod's port is found by in the sets of those whose clients look like the node.
    fn pod_key(&self) -> Value {
        Value::ip(self.pod.addr()).and_protocol(self.protocol.number()).and_port(self.pod_port)
    }

    /// Where it stands for those clients, and by what it is found there.
    fn snat_keys(&self, snat: Snat) -> Vec<(Cow<'static, str>, Value)> {
        match snat {
            Snat::Off => vec![],
            Snat::Local => {
                let mut keys = vec![(named_for("local", &self.pod).into(), self.pod_key())];
                // Its only neighbour is the pod itself.
                keys.extend(is_alone(&self.pod).then(|| (SELF[self.half()].into(), self.self_key())));
                keys
            }
            Snat::All => vec![(SNAT_ALL[self.half()].into(), self.pod_key())],
        }
    }

    fn self_key(&self) -> Value {
        let pod = self.pod.addr();
        Value::ip(pod).and_ip(pod).and_protocol(self.protocol.number()).and_port(self.pod_port)
    }

    fn entries(&self, owner: &str, snat: Snat) -> Vec<Entry> {
        let (set, key) = self.key();
        let mut entries = vec![Entry::own(set, Element::key(key).to(self.data()).comment(owner))];
        let hidden = self.snat_keys(snat).into_iter();
        entries.extend(hidden.map(|(set, key)| Entry::own(set, Element::key(key).comment(owner))));
        entries
    }

    /// Where it can be, however the sources were treated.
    fn keys(&self) -> Vec<(Cow<'static, str>, Value)> {
        let (set, key) = self.key();
        let sources = [Snat::Local, Snat::All].into_iter().flat_map(|snat| self.snat_keys(snat));
        [(set.into(), key)].into_iter().chain(sources).collect()
    }

    /// Reads a map's element back. The prefix of the pod's network is not in it: the address stands alone.
    fn from_element(element: &Element) -> Option<PortMap> {
        let Data::Value(to) = &element.data else { return None };
        let key = element.key.bytes();
        let (host, key) = key.split_at(key.len().checked_sub(8)?);
        let (pod, pod_port) = to.bytes().split_at(to.bytes().len().checked_sub(4)?);
        let port = |bytes: &[u8]| Some(u16::from_be_bytes([*bytes.first()?, *bytes.get(1)?]));
        Some(PortMap {
            protocol: Protocol::from_number(key[0])?,
            host_ip: attr::ip(host),
            host_port: port(&key[4..])?,
            pod: attr::ip(pod)?.into(),
            pod_port: port(pod_port)?,
        })
    }
}

/// Maps the ports, all or none. A port that another pod has is an error that names it; one that leads to this
/// pod's address was left by a pod that has gone, and changes hands; one that leads into the same container, to another
/// interface, stays as it is. Says whether there was such a one.
pub fn add(nft: &mut Socket, owner: &Owner, maps: &[PortMap], options: &Options) -> Result<bool> {
    condition::check(options)?;
    let maps: Vec<PortMap> = maps.iter().copied().filter(PortMap::maps_something).collect();
    let (table, comment) = (condition::table(options), owner.comment());
    let mut entries: Vec<Entry> = Vec::with_capacity(maps.len() * 2);
    for entry in maps.iter().flat_map(|map| map.entries(&comment, options.snat)) {
        // Two ports of the node may lead to the same port of the pod, and a map may be asked for twice.
        if !entries.iter().any(|other| other.set == entry.set && other.element == entry.element) {
            entries.push(entry);
        }
    }
    let networks = |change: &mut Transaction| networks(change, &maps, options);
    let left_to_sibling = Cell::new(false);
    let rival = |entry: &Entry, there: &Element| {
        let found = rival(owner, entry, there)?;
        left_to_sibling.set(left_to_sibling.get() || found == Found::Good);
        Ok(found)
    };
    Plan {
        table: &table,
        entries,
        skeletons: &[&networks, &|change| whole(change, &maps, options)],
        rival: &rival,
    }
    .carry_out(nft)?;
    Ok(left_to_sibling.get())
}

/// The rules for the pods' networks.
fn networks(change: &mut Transaction, maps: &[PortMap], options: &Options) {
    if options.snat == Snat::Local {
        skeleton::networks(change, &condition::table(options), maps);
    }
}

fn whole(change: &mut Transaction, maps: &[PortMap], options: &Options) {
    skeleton::whole(change, &condition::table(options), options);
    networks(change, maps, options);
}

/// What is missing of the rules that [`add`] relies on, in words.
pub fn absent(nft: &mut Socket, maps: &[PortMap], options: &Options) -> Result<Vec<String>> {
    elements::absent(nft, &|change| whole(change, maps, options))
}

/// Makes those rules again.
pub fn prepare(nft: &mut Socket, maps: &[PortMap], options: &Options) -> Result<()> {
    elements::prepare(nft, &|change| whole(change, maps, options))
}

/// Decides about somebody else's element with the key of ours.
fn rival(owner: &Owner, entry: &Entry, there: &Element) -> Result<Found> {
    let (Some(wanted), Some(held)) = (PortMap::from_element(&entry.element), PortMap::from_element(there))
    else {
        // Keyed by the pod's own address: it was another's before.
        return Ok(Found::Stale);
    };
    if is_of(there, owner) || held.pod == wanted.pod {
        return Ok(Found::Stale);
    }
    if is_of_sibling(there, owner) {
        return Ok(Found::Good);
    }
    Err(Error::PortTaken {
        port: wanted.host_port,
        protocol: wanted.protocol.name(),
        address: wanted.host_ip,
        holder: there.comment.clone().unwrap_or_else(|| held.pod.addr().to_string()),
    })
}

/// Whether an element is of another interface of the same container.
fn is_of_sibling(element: &Element, owner: &Owner) -> bool {
    let comment = element.comment.as_deref().unwrap_or_default();
    owner.shares_container(comment) && !owner.matches(comment)
}

/// Takes these maps back, as far as they are this owner's; says whether there were any.
pub fn remove(nft: &mut Socket, owner: &Owner, maps: &[PortMap], options: &Options) -> Result<bool> {
    let table = condition::table(options);
    let mut keys: Vec<(Cow<'static, str>, Value)> = Vec::with_capacity(maps.len() * 3);
    for key in maps.iter().filter(|map| map.maps_something()).flat_map(PortMap::keys) {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    elements::remove(nft, &table, &keys, &|element| is_of(element, owner))
}

/// Takes all maps of this owner back, in whatever table they are.
pub fn remove_all(nft: &mut Socket, owner: &Owner) -> Result<bool> {
    Ok(sweep(nft, &|comment| owner.matches(comment))? > 0)
}

/// Takes back the maps of owners in this network that are not among those to `keep`; says how many elements
/// that were.
pub fn collect(nft: &mut Socket, network: &str, keep: &[Owner]) -> Result<usize> {
    sweep(nft, &elements::strays(network, keep))
}

fn sweep(nft: &mut Socket, doomed: &dyn Fn(&str) -> bool) -> Result<usize> {
    tables(nft)?.iter().try_fold(0, |sum, table| {
        let sets = nft::list_sets(nft, table)?;
        Ok(sum + elements::sweep(nft, table, &sets, doomed)?)
    })
}

fn tables(nft: &mut Socket) -> Result<Vec<Table>> {
    let mut tables = nft::list_tables(nft, Some(Family::Inet))?;
    tables.retain(is_table);
    Ok(tables)
}

/// Which of the maps are not as [`add`] made them, or would leave them.
pub fn missing(nft: &mut Socket, owner: &Owner, maps: &[PortMap], options: &Options) -> Result<Vec<PortMap>> {
    let (table, comment) = (condition::table(options), owner.comment());
    let mut missing = Vec::new();
    for map in maps.iter().filter(|map| map.maps_something()) {
        for Entry { set, element, .. } in map.entries(&comment, options.snat) {
            let there = nft::get_element(nft, &table, &set, &element.key)?;
            let is_map = PortMap::from_element(&element).is_some();
            let led_to_sibling = is_map && there.as_ref().is_some_and(|there| is_of_sibling(there, owner));
            if there.as_ref() != Some(&element) && !led_to_sibling {
                missing.push(*map);
                break;
            }
        }
    }
    Ok(missing)
}

/// All port maps of the node with their owners' comments. The pods' addresses come without their networks.
pub fn list(nft: &mut Socket) -> Result<Vec<(PortMap, String)>> {
    let mut maps = Vec::new();
    for table in tables(nft)? {
        for set in [ANY[0], HOST[0], ANY[1], HOST[1]] {
            let elements = nft::list_elements(nft, &table, set)?;
            maps.extend(elements.into_iter().filter_map(|element| {
                Some((PortMap::from_element(&element)?, element.comment.unwrap_or_default()))
            }));
        }
    }
    Ok(maps)
}

/// Forgets connections to these ports whoever answers them: after [`add`], so that a client who has been
/// sending all the time reaches the new pod. TCP clients notice by themselves.
pub fn forget_earlier_connections(nft: &mut Socket, maps: &[PortMap]) -> Result<()> {
    forget(nft, maps, |_| None)
}

/// Forgets connections to these ports that the pod answers: after [`remove`].
pub fn forget_connections_to_pod(nft: &mut Socket, maps: &[PortMap]) -> Result<()> {
    forget(nft, maps, |map| Some(map.pod.addr()))
}

fn forget(
    nft: &mut Socket,
    maps: &[PortMap],
    answers_from: impl Fn(&PortMap) -> Option<IpAddr>,
) -> Result<()> {
    for map in maps.iter().filter(|map| map.protocol != Protocol::Tcp && map.maps_something()) {
        let filter = ct::Filter {
            family: super::family(&map.pod),
            protocol: map.protocol.number(),
            port: map.host_port,
            destination: map.address(),
            answers_from: answers_from(map),
        };
        ct::delete(nft, &filter)?;
    }
    Ok(())
}
