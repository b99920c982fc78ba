//! The lab's underlay: a bridge for each subnet, all in the router, and a cable from each node to its bridge.

use std::net::IpAddr;

use podwire_ip::IpFamily;
use podwire_kernel::bridge::Bridge;
use podwire_kernel::rt::{address, link, route::Route};
use podwire_kernel::veth::{Port, Veth};
use podwire_kernel::{sysctl, Host, Owner};
use podwire_netlink::Batch;

use crate::plan::{Seat, ROUTER};
use crate::{Error, Fault, Lab, Result};

/// A node's way to the others.
pub(crate) const UPLINK: &str = "eth0";

impl Lab {
    /// The bridges, the router's address on each, and leave to pass from one to the other.
    pub(crate) fn lay_wires(&self) -> Result<()> {
        let mut router = self.host(ROUTER)?;
        router.run(|| sysctl::enable_forwarding(&IpFamily::ALL))??;
        for subnet in 1..=self.state.plan.subnets {
            let name = wire(subnet);
            let bridge = Bridge { name: &name, mtu: 0, promiscuous: false, vlan_filtering: false };
            let bridge = bridge.ensure(&mut router)?;
            for (ip, prefix) in self.state.plan.gateways(subnet) {
                router.route.request(address::add(bridge.index, ip, prefix, false))?;
            }
        }
        Ok(())
    }

    /// A cable from a node to its wire. The node's end has another hardware address each time.
    pub(crate) fn plug_in(&self, node: &str) -> Result<()> {
        let seat = self.seat(node)?;
        let mut router = self.host(ROUTER)?;
        self.unplug(node)?;
        let bridge = router.get_link(&wire(seat.subnet))?;
        let owner = Owner::new(self.state.plan.namespace(), node, UPLINK);
        let port = Some(Port { bridge: bridge.index, ipv6: bridge.has_ipv6(), ..Port::default() });
        let cable = Veth { name: UPLINK, owner: &owner, mtu: 0, mac: None, port, end: None };
        let made = cable.create(&mut router, &self.netns(node)?)?;
        // Named after the node, for whoever looks at packets here. A link that is up keeps its name.
        let end = router.get_link(&made.host)?;
        let mut batch = Batch::new();
        batch.push(link::down(&end));
        batch.push(
            link::change(end.index, format!("name {node}'s port")).string(link::attribute::IFNAME, node),
        );
        batch.push(link::up(&end));
        router.route.batch(batch)?;
        self.dress(node)
    }

    /// Takes a node's cable away, at once: the kernel would do it some time after the node's end.
    pub(crate) fn unplug(&self, node: &str) -> Result<()> {
        let mut router = self.host(ROUTER)?;
        if let Some(port) = router.find_link(node)? {
            router.route.request(link::delete(&port))?;
        }
        Ok(())
    }

    /// Makes a node's uplink as it is to be: up, with its addresses and no others, and the ways out. This is what a
    /// machine's own network service does.
    pub(crate) fn dress(&self, node: &str) -> Result<()> {
        let seat = self.seat(node)?;
        let mut host = self.host(node)?;
        let uplink = host.get_link(UPLINK)?;
        host.route.request(link::up(&uplink))?;
        let there = address::list(&mut host.route, uplink.index)?;
        let is_wanted = |ip: IpAddr| seat.sides.iter().any(|side| side.0 == ip);
        let mut batch = Batch::new();
        for one in there.iter().filter(|one| is_ours(one.ip) && !is_wanted(one.ip)) {
            batch.push(address::delete(uplink.index, one.ip, one.prefix));
        }
        for (ip, prefix, _) in seat.sides.iter().filter(|side| !there.iter().any(|one| one.ip == side.0)) {
            batch.push(address::add(uplink.index, *ip, *prefix, false));
        }
        for (_, _, gateway) in &seat.sides {
            batch.push(way_out(*gateway, uplink.index).replace());
        }
        Ok(host.route.batch(batch)?)
    }

    /// Where a node is now: it may have been moved.
    pub(crate) fn seat(&self, node: &str) -> Result<Seat> {
        let number = self.state.plan.number(node).ok_or_else(|| Error::NoMachine {
            lab: self.state.plan.name.clone(),
            name: node.into(),
            machines: self.nodes(),
        })?;
        Ok(self.state.plan.seat(number, self.state.is_broken(Fault::ChangeAddress, node)))
    }
}

/// The uplink goes down, and with it every way out.
pub(crate) fn take_down(host: &mut Host) -> Result<()> {
    let uplink = host.get_link(UPLINK)?;
    Ok(host.route.request(link::down(&uplink))?)
}

fn way_out(gateway: IpAddr, link: u32) -> Route {
    let everywhere = if gateway.is_ipv4() { IpAddr::from([0u8; 4]) } else { IpAddr::from([0u8; 16]) };
    Route { gateway: Some(gateway), link: Some(link), ..Route::to(everywhere, 0) }
}

fn wire(subnet: u16) -> String {
    format!("lan{subnet}")
}

/// Addresses that the kernel gives by itself are its own business.
fn is_ours(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(_) => true,
        IpAddr::V6(ip) => ip.segments()[0] & 0xffc0 != 0xfe80,
    }
}
