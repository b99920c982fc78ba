//! From the desired state to the kernel: read once, compare, send the difference.
//!
//! The order keeps packets flowing, and no device exists without its guard:
//!
//! 1. The guard of the tunnels learns the peers.
//! 2. Obsolete devices go, and missing devices are created.
//! 3. Obsolete routes go, because the entries behind them are about to change.
//! 4. Addresses, neighbours and forwarding entries are added or corrected.
//! 5. Routes that need those entries are added or replaced.
//! 6. Obsolete addresses, neighbours and forwarding entries go.
//! 7. The firewall rules are made as desired.

mod device;
mod wireguard;

use ipnet::IpNet;
use podwire_ip::IpFamily;
use podwire_kernel::firewall::{cluster as rules, tunnel};
use podwire_kernel::{Host, Link, Mac};
use podwire_netlink::rt::link;
use podwire_netlink::rt::route::{self, Route};
use podwire_netlink::{Batch, Message};

use crate::backend::Backend;
use crate::cluster::{Cluster, Peer};
use crate::desired::{DesiredRoute, DesiredState, Device, Egress};
use crate::error::{Error, Result};
use crate::firewall::FirewallOptions;
use crate::ownership::{ALIAS, PROTOCOL};
use crate::report::{ObjectCounts, Report, TunnelDevice, UnreachablePeer};
use crate::route_lookup::RouteLookup;
use crate::routes::{self, Ownership};
use crate::tunnel_guard;

/// The metric of a blackhole route: every other route to the same destination takes precedence.
const BLACKHOLE_METRIC: u32 = 4096;
/// The index of the loopback in every namespace. The kernel sets it on IPv6 blackhole routes.
const LOOPBACK: u32 = 1;

/// Makes devices, routes and firewall rules as `backend` wants them for `cluster`. Objects that are as desired are not
/// touched.
pub fn apply(
    host: &mut Host,
    backend: &dyn Backend,
    cluster: &Cluster,
    firewall: &FirewallOptions,
) -> Result<Report> {
    let links = link::list(&mut host.route)?;
    let mut found = main_table(host)?;
    let foreign: Vec<Route> = found.iter().filter(|route| route.protocol != PROTOCOL).cloned().collect();
    let lookup = RouteLookup::new(&foreign, &cluster.networks);
    let desired = backend.desired(cluster, &lookup);
    let rules = backend.rules(cluster, firewall);
    let guard = tunnel_guard::guard(&desired, backend.peer_networks(&desired), &lookup, &rules);
    let changed = tunnel::apply(host.nft()?, &guard)?;
    let uplinks = cluster.local.subnets.iter().map(|subnet| subnet.uplink.name.clone());
    let pod_links = tunnel_guard::pod_links(&desired, &links, uplinks, &rules);
    let vxlan_ports = guard.vxlan_ports;
    let unreachable = desired.unreachable.clone();
    let report = Report { unreachable, changed, pod_links, vxlan_ports, ..Report::default() };

    // A single address belongs to one pod, which has its own route or none.
    let pod_cidrs = cluster
        .local
        .subnets
        .iter()
        .map(|subnet| subnet.pod_cidr)
        .filter(|cidr| cidr.prefix_len() < cidr.max_prefix_len());
    let blackholes: Vec<Route> =
        pod_cidrs.filter(|_| firewall.blackhole).map(|cidr| blackhole(&cidr)).collect();
    let predecessor = backend.predecessor_protocol();
    let mut run = Run { host, cluster, desired: &desired, blackholes, predecessor, report };
    run.remove_obsolete_devices(&links)?;
    let devices = run.ensure_devices(&links, &mut found)?;
    let messages = run.difference(&devices, &found)?;
    run.send(messages)?;
    run.configure_wireguard(&devices)?;
    let Run { host, mut report, blackholes, .. } = run;
    report.objects = count(&desired, &blackholes);
    report.changed.extend(rules::apply(host.nft()?, &rules)?);
    Ok(report)
}

/// All routes of the main table.
pub(crate) fn main_table(host: &mut Host) -> Result<Vec<Route>> {
    let mut all = Vec::new();
    for family in IpFamily::ALL {
        match route::list_table(&mut host.route, family, route::MAIN) {
            // A kernel without IPv6 has no table, nor has a namespace that never had a route.
            Err(error) if error.is_unsupported() || error.is_gone() => {}
            rows => all.extend(rows?),
        }
    }
    Ok(all)
}

/// One call of [`apply`].
struct Run<'a> {
    host: &'a mut Host,
    cluster: &'a Cluster,
    desired: &'a DesiredState,
    blackholes: Vec<Route>,
    predecessor: Option<u8>,
    report: Report,
}

impl Run<'_> {
    /// Deletes devices with our alias that this backend does not want: of another VNI or another backend.
    fn remove_obsolete_devices(&mut self, links: &[Link]) -> Result<()> {
        let is_desired = |link: &Link| self.desired.devices.iter().any(|one| one.tunnel.name == link.name);
        for obsolete in links.iter().filter(|link| link.alias == ALIAS && !is_desired(link)) {
            let message = link::delete(obsolete);
            self.report.changed.push(message.doing().into());
            match self.host.route.request(message) {
                Err(error) if error.is_gone() => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Creates or changes the devices. Removes routes from `found` that disappeared with a recreated device.
    fn ensure_devices(&mut self, links: &[Link], found: &mut Vec<Route>) -> Result<Vec<Link>> {
        let mut devices = Vec::with_capacity(self.desired.devices.len());
        for device in &self.desired.devices {
            let existing = links.iter().find(|link| link.name == device.tunnel.name);
            let ensured = device.tunnel.ensure(self.host, existing.cloned());
            let ensured = ensured.map_err(|error| explain(error, device.tunnel.driver.kind()))?;
            if ensured.is_new {
                found.retain(|route| existing.is_none_or(|old| route.link != Some(old.index)));
            }
            self.report.changed.extend(ensured.done);
            devices.push(ensured.link);
        }
        Ok(devices)
    }

    /// All messages, in the order of the module's header.
    fn difference(&mut self, devices: &[Link], found: &[Route]) -> Result<Vec<Message>> {
        let indices: Vec<u32> = devices.iter().map(|link| link.index).collect();
        let desired = self.desired.routes.iter().map(|route| kernel_route(route, &indices));
        let desired: Vec<Route> = desired.chain(self.blackholes.iter().cloned()).collect();
        let (networks, predecessor) = (&self.cluster.networks[..], self.predecessor);
        let ownership = Ownership { devices: &indices, networks, predecessor };
        let mut routes = routes::difference(&desired, found, &ownership);
        for (to, occupant) in routes.occupied.drain(..) {
            let reason = format!("{to} has {occupant}, which the overlay does not own: delete that route");
            self.report.unreachable.push(UnreachablePeer::new(node_of(self.cluster, &to), reason));
        }
        let mut messages = std::mem::take(&mut routes.obsolete);
        let mut obsolete = Vec::new();
        for (device, link) in self.desired.devices.iter().zip(devices) {
            let mut entries = device::difference(self.host, device, link, &self.cluster.networks)?;
            messages.append(&mut entries.needed);
            obsolete.append(&mut entries.obsolete);
        }
        messages.append(&mut routes.needed);
        messages.append(&mut obsolete);
        Ok(messages)
    }

    /// Sends messages in batches. Deleting something that is already gone is no failure.
    fn send(&mut self, messages: Vec<Message>) -> Result<()> {
        let doing: Vec<String> = messages.iter().map(|message| message.doing().into()).collect();
        let mut batch = Batch::new();
        batch.extend(messages);
        let failures = self.host.route.batch_each(batch)?;
        let mut failed = failures.iter().map(|(at, _)| *at).peekable();
        let done = doing.iter().enumerate().filter(|(at, _)| failed.next_if_eq(at).is_none());
        self.report.changed.extend(done.map(|(_, doing)| doing.clone()));
        let is_failure =
            |at: usize, error: &podwire_netlink::Error| !(error.is_gone() && doing[at].starts_with("delete"));
        let failures = failures.into_iter().filter(|(at, error)| is_failure(*at, error));
        self.report.failed.extend(failures.map(|(_, error)| error.into()));
        Ok(())
    }

    /// Configures WireGuard devices and adds all devices to the report.
    fn configure_wireguard(&mut self, devices: &[Link]) -> Result<()> {
        for (device, link) in self.desired.devices.iter().zip(devices) {
            let public_key = wireguard::apply(self.host, device, link, &mut self.report)?;
            let mac = <[u8; 6]>::try_from(link.mac.as_slice()).ok().map(Mac);
            let (name, index, mtu) = (link.name.clone(), link.index, link.mtu);
            self.report.tunnels.push(TunnelDevice { name, index, mtu, mac, public_key });
        }
        Ok(())
    }
}

/// Adds what to do about a foreign device with the name of an owned one, and about a kernel without the device's driver.
fn explain(error: podwire_kernel::Error, driver: &'static str) -> Error {
    match error {
        podwire_kernel::Error::Netlink(source) if source.is_unsupported() => {
            Error::NoDriver { module: driver, source }
        }
        podwire_kernel::Error::WrongKind { name, wanted, found } => {
            Error::ForeignDevice { name, wanted, found }
        }
        other => other.into(),
    }
}

/// The name of the peer with this pod CIDR, or the CIDR itself.
fn node_of(cluster: &Cluster, to: &IpNet) -> String {
    let has = |peer: &&Peer| peer.subnets.iter().any(|subnet| subnet.pod_cidr.trunc() == *to);
    cluster.peers.iter().find(has).map_or_else(|| to.to_string(), |peer| peer.name.clone())
}

fn kernel_route(route: &DesiredRoute, devices: &[u32]) -> Route {
    let link = match route.egress {
        Egress::Tunnel(number) => devices.get(number).copied(),
        Egress::Link(index) => Some(index),
    };
    Route {
        gateway: route.via,
        link,
        onlink: route.onlink,
        protocol: PROTOCOL,
        scope: if route.via.is_none() && route.to.addr().is_ipv4() { route::LINK } else { route::UNIVERSE },
        ..Route::to(route.to.network(), route.to.prefix_len())
    }
}

/// A blackhole route for a pod CIDR. The routes of existing pods and their bridges take precedence.
fn blackhole(pod_cidr: &IpNet) -> Route {
    Route {
        link: pod_cidr.addr().is_ipv6().then_some(LOOPBACK),
        priority: Some(BLACKHOLE_METRIC),
        protocol: PROTOCOL,
        kind: libc::RTN_BLACKHOLE,
        ..Route::to(pod_cidr.network(), pod_cidr.prefix_len())
    }
}

fn count(desired: &DesiredState, blackholes: &[Route]) -> ObjectCounts {
    let sum = |count: fn(&Device) -> usize| desired.devices.iter().map(count).sum();
    ObjectCounts {
        devices: desired.devices.len(),
        routes: desired.routes.len() + blackholes.len(),
        neighbours: sum(|device| device.neighbours.len()),
        forwarding: sum(|device| device.forwarding.len()),
    }
}
