//! From what is wanted to the kernel: read once, compare, send the difference.
//!
//! The order keeps packets flowing. Devices come first; then who is behind them; then the routes that lead there; and only
//! then what nobody needs any more is forgotten. Routes that nobody wants go before all that, since what they lead to is
//! about to change.

mod attached;
mod secrets;

use std::net::IpAddr;

use ipnet::IpNet;
use podwire_kernel::firewall::cluster as rules;
use podwire_kernel::{Host, Link, Mac};
use podwire_netlink::rt::link;
use podwire_netlink::rt::route::{self, Route};
use podwire_netlink::{Batch, Message};

use crate::desired::{DesiredState, Device, Egress};
use crate::routes::{self, Claim};
use crate::{
    Backend, Cluster, Error, ObjectCounts, Report, Result, RouteLookup, TunnelDevice, UnreachablePeer, ALIAS,
    PROTOCOL,
};

/// What the firewall is to do for pods; flannel's flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirewallOptions {
    /// Pods reach the world with the node's address (`--ip-masq`).
    pub masquerade: bool,
    /// With a random port (not `--ip-masq-fully-random-disable`).
    pub random_ports: bool,
    /// Pods' packets pass FORWARD (`--iptables-forward-rules`).
    pub forward: bool,
    /// What is sent to a pod of this node that is not there goes nowhere, instead of out by the default route
    /// (`--ip-blackhole-route`).
    pub blackhole: bool,
}

/// The metric of a route that leads nowhere: whatever else is known of an address is better.
const LAST_RESORT: u32 = 4096;
/// The loopback's index, in every namespace. The kernel notes it on an IPv6 route that leads nowhere.
const LOOPBACK: u32 = 1;

impl Default for FirewallOptions {
    fn default() -> FirewallOptions {
        FirewallOptions { masquerade: false, random_ports: true, forward: true, blackhole: false }
    }
}

/// Makes the roads of `cluster`, as `fabric` builds them, and the firewall's rules. What is as wanted is not touched.
pub fn apply(
    host: &mut Host,
    backend: &dyn Backend,
    cluster: &Cluster,
    firewall: &FirewallOptions,
) -> Result<Report> {
    let links = link::list(&mut host.route)?;
    let mut found = main_table(host)?;
    let foreign: Vec<Route> = found.iter().filter(|route| route.protocol != PROTOCOL).cloned().collect();
    let wanted = backend.desired(cluster, &RouteLookup::new(&foreign, &cluster.networks));
    let report = Report { unreachable: wanted.unreachable.clone(), ..Report::default() };

    // A single address is a pod's, and has its own route or none.
    let ranges = cluster
        .local
        .subnets
        .iter()
        .map(|side| side.pod_cidr)
        .filter(|pods| pods.prefix_len() < pods.max_prefix_len());
    let holes: Vec<Route> = ranges.filter(|_| firewall.blackhole).map(|pods| blackhole(&pods)).collect();
    let predecessor = backend.predecessor();
    let mut site = Site { host, cluster, wanted: &wanted, holes, predecessor, report };
    site.remove_strays(&links)?;
    let devices = site.ensure_devices(&links, &mut found)?;
    let messages = site.difference(&devices, &found)?;
    site.send(messages)?;
    site.tell_secrets(&devices)?;
    let Site { host, mut report, holes, .. } = site;
    report.objects = objects(&wanted, &holes);
    report.changed.extend(rules::apply(host.nft()?, &backend.rules(cluster, firewall))?);
    Ok(report)
}

/// All routes of the main table.
pub(crate) fn main_table(host: &mut Host) -> Result<Vec<Route>> {
    let mut all = Vec::new();
    for like in [IpAddr::from([0u8; 4]), IpAddr::from([0u8; 16])] {
        match route::list_table(&mut host.route, like, route::MAIN) {
            // A kernel without IPv6 has none, and a namespace in which nobody ever had a route has no table.
            Err(error) if error.is_unsupported() || error.is_gone() => {}
            rows => all.extend(rows?),
        }
    }
    Ok(all)
}

/// A node on which roads are being built.
struct Site<'a> {
    host: &'a mut Host,
    cluster: &'a Cluster,
    wanted: &'a DesiredState,
    /// Routes that lead nowhere.
    holes: Vec<Route>,
    predecessor: Option<u8>,
    report: Report,
}

impl Site<'_> {
    /// Removes devices that bear our note and that this fabric does not have: of another VNI, or of another backend.
    fn remove_strays(&mut self, links: &[Link]) -> Result<()> {
        let is_wanted = |link: &Link| self.wanted.devices.iter().any(|one| one.tunnel.name == link.name);
        for stray in links.iter().filter(|link| link.alias == ALIAS && !is_wanted(link)) {
            let message = link::delete(stray);
            self.report.changed.push(message.doing().into());
            match self.host.route.request(message) {
                Err(error) if error.is_gone() => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Makes or changes the devices. Routes that went with one that had to be made anew are no longer `found`.
    fn ensure_devices(&mut self, links: &[Link], found: &mut Vec<Route>) -> Result<Vec<Link>> {
        let mut devices = Vec::with_capacity(self.wanted.devices.len());
        for device in &self.wanted.devices {
            let there = links.iter().find(|link| link.name == device.tunnel.name);
            let ensured = device.tunnel.ensure(self.host, there.cloned()).map_err(named)?;
            if ensured.is_new {
                found.retain(|route| there.is_none_or(|old| route.link != Some(old.index)));
            }
            self.report.changed.extend(ensured.done);
            devices.push(ensured.link);
        }
        Ok(devices)
    }

    /// All messages that are needed, in the order in which they are safe.
    fn difference(&mut self, devices: &[Link], found: &[Route]) -> Result<Vec<Message>> {
        let indices: Vec<u32> = devices.iter().map(|link| link.index).collect();
        let ways = self.wanted.routes.iter().map(|way| route_of(way, &indices));
        let ways: Vec<Route> = ways.chain(self.holes.iter().cloned()).collect();
        let (networks, predecessor) = (&self.cluster.networks[..], self.predecessor);
        let claim = Claim { devices: &indices, networks, predecessor };
        let mut roads = routes::difference(&ways, found, &claim);
        for (to, occupant) in roads.occupied.drain(..) {
            let why = format!("{to} is taken by {occupant}, which is not ours to change: delete it");
            self.report.unreachable.push(UnreachablePeer::new(holder(self.cluster, &to), why));
        }
        let mut messages = std::mem::take(&mut roads.obsolete);
        let mut forgotten = Vec::new();
        for (device, link) in self.wanted.devices.iter().zip(devices) {
            let mut change = attached::difference(self.host, device, link, &self.cluster.networks)?;
            messages.append(&mut change.needed);
            forgotten.append(&mut change.obsolete);
        }
        messages.append(&mut roads.needed);
        messages.append(&mut forgotten);
        Ok(messages)
    }

    /// Sends messages in batches. What was to be deleted and is gone already is no failure.
    fn send(&mut self, messages: Vec<Message>) -> Result<()> {
        let doing: Vec<String> = messages.iter().map(|message| message.doing().into()).collect();
        let mut batch = Batch::new();
        batch.extend(messages);
        let failures = self.host.route.batch_each(batch)?;
        let mut failed = failures.iter().map(|(at, _)| *at).peekable();
        let done = doing.iter().enumerate().filter(|(at, _)| failed.next_if_eq(at).is_none());
        self.report.changed.extend(done.map(|(_, doing)| doing.clone()));
        let is_lost =
            |at: usize, error: &podwire_netlink::Error| !(error.is_gone() && doing[at].starts_with("delete"));
        let lost = failures.into_iter().filter(|(at, error)| is_lost(*at, error));
        self.report.failed.extend(lost.map(|(_, error)| error.into()));
        Ok(())
    }

    /// Tells WireGuard what it must know, and the report what peers must know.
    fn tell_secrets(&mut self, devices: &[Link]) -> Result<()> {
        for (device, link) in self.wanted.devices.iter().zip(devices) {
            let public_key = secrets::apply(self.host, device, link, &mut self.report)?;
            let mac = <[u8; 6]>::try_from(link.mac.as_slice()).ok().map(Mac);
            let (name, index, mtu) = (link.name.clone(), link.index, link.mtu);
            self.report.tunnels.push(TunnelDevice { name, index, mtu, mac, public_key });
        }
        Ok(())
    }
}

/// A device of that name and another kind is told with what to do about it.
fn named(error: podwire_kernel::Error) -> Error {
    match error {
        podwire_kernel::Error::WrongKind { name, wanted, found } => {
            Error::ForeignDevice { name, wanted, found }
        }
        other => other.into(),
    }
}

fn holder(cluster: &Cluster, to: &IpNet) -> String {
    let has = |peer: &&crate::Peer| peer.subnets.iter().any(|side| side.pod_cidr.trunc() == *to);
    cluster.peers.iter().find(has).map_or_else(|| to.to_string(), |peer| peer.name.clone())
}

fn route_of(way: &crate::DesiredRoute, devices: &[u32]) -> Route {
    let link = match way.egress {
        Egress::Tunnel(number) => devices.get(number).copied(),
        Egress::Link(index) => Some(index),
    };
    Route {
        gateway: way.via,
        link,
        onlink: way.onlink,
        protocol: PROTOCOL,
        scope: if way.via.is_none() && way.to.addr().is_ipv4() { route::LINK } else { route::UNIVERSE },
        ..Route::to(way.to.network(), way.to.prefix_len())
    }
}

/// More is known of a pod that is there: its own route, or that of its bridge.
fn blackhole(pods: &IpNet) -> Route {
    Route {
        link: pods.addr().is_ipv6().then_some(LOOPBACK),
        priority: Some(LAST_RESORT),
        protocol: PROTOCOL,
        kind: libc::RTN_BLACKHOLE,
        ..Route::to(pods.network(), pods.prefix_len())
    }
}

fn objects(wanted: &DesiredState, holes: &[Route]) -> ObjectCounts {
    let sum = |count: fn(&Device) -> usize| wanted.devices.iter().map(count).sum();
    ObjectCounts {
        devices: wanted.devices.len(),
        routes: wanted.routes.len() + holes.len(),
        neighbours: sum(|device| device.neighbours.len()),
        forwarding: sum(|device| device.forwarding.len()),
    }
}

pub(crate) fn rules_for(cluster: &Cluster, firewall: &FirewallOptions) -> rules::Rules {
    let FirewallOptions { masquerade, random_ports, forward, .. } = *firewall;
    let outside = |net: &&IpNet| !cluster.networks.iter().any(|network| network.contains(*net));
    let ranges = cluster.peers.iter().flat_map(|peer| peer.subnets.iter().map(|side| &side.pod_cidr));
    let own: Vec<IpNet> = cluster.local.subnets.iter().map(|side| side.pod_cidr).collect();
    rules::Rules {
        cluster: cluster.networks.iter().chain(ranges.chain(&own).filter(outside)).copied().collect(),
        own,
        masquerade,
        random_ports,
        forward,
        scope: rules::MasqueradeScope::PodCidrs,
    }
}

/// What is to be sent about one thing.
#[derive(Default)]
pub(crate) struct Change {
    /// What is missing or wrong.
    needed: Vec<Message>,
    /// What nobody needs any more.
    obsolete: Vec<Message>,
}

/// The address of a device that stands alone in its network.
fn full(ip: &IpAddr) -> u8 {
    if ip.is_ipv4() {
        32
    } else {
        128
    }
}

/// Whether a device is one with a forwarding database.
fn forwards(device: &Device) -> bool {
    matches!(device.tunnel.driver, podwire_kernel::tunnel::Driver::Vxlan(_))
}
