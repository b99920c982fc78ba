//! The underlay of the lab: a bridge for each subnet, in the router, and a veth pair from each node to its bridge.

use std::net::IpAddr;

use podwire_ip::IpFamily;
use podwire_kernel::bridge::Bridge;
use podwire_kernel::rt::{address, link, route::Route};
use podwire_kernel::veth::{Port, Veth};
use podwire_kernel::{sysctl, Host, Owner};
use podwire_netlink::Batch;

use crate::spec::{Uplink, ROUTER};
use crate::{Error, Fault, Lab, Result};

/// The interface of a node to the other nodes.
pub(crate) const UPLINK: &str = "eth0";

impl Lab {
    /// Creates the bridges with the router's addresses, and enables forwarding between them.
    pub(crate) fn create_bridges(&self) -> Result<()> {
        let mut router = self.host(ROUTER)?;
        router.run(|| sysctl::enable_forwarding(&IpFamily::ALL))??;
        for subnet in 1..=self.state.spec.subnets {
            let name = bridge_name(subnet);
            let bridge = Bridge { name: &name, mtu: 0, promiscuous: false, vlan_filtering: false };
            let bridge = bridge.ensure(&mut router)?;
            for (ip, prefix) in self.state.spec.gateways(subnet) {
                router.route.request(address::add(bridge.index, ip, prefix, false))?;
            }
        }
        Ok(())
    }

    /// Connects a node to its bridge. The interface of the node gets a new MAC address each time.
    pub(crate) fn connect(&self, node: &str) -> Result<()> {
        let uplink = self.uplink(node)?;
        let mut router = self.host(ROUTER)?;
        self.disconnect(node)?;
        let bridge = router.get_link(&bridge_name(uplink.subnet))?;
        let owner = Owner::new(self.state.spec.namespace(), node, UPLINK);
        let port = Some(Port { bridge: bridge.index, ipv6: bridge.has_ipv6(), ..Port::default() });
        let veth = Veth { name: UPLINK, owner: &owner, mtu: 0, mac: None, port, end: None };
        let made = veth.create(&mut router, &self.netns(node)?)?;
        // Named after the node, for packet captures. The kernel does not rename a link that is up.
        let end = router.get_link(&made.host)?;
        let mut batch = Batch::new();
        batch.push(link::down(&end));
        batch.push(
            link::change(end.index, format!("name {node}'s port")).string(link::attribute::IFNAME, node),
        );
        batch.push(link::up(&end));
        router.route.batch(batch)?;
        self.configure_uplink(node)
    }

    /// Removes the veth pair of a node now. The kernel would remove it some time after the end of the node.
    pub(crate) fn disconnect(&self, node: &str) -> Result<()> {
        let mut router = self.host(ROUTER)?;
        if let Some(port) = router.find_link(node)? {
            router.route.request(link::delete(&port))?;
        }
        Ok(())
    }

    /// Sets up the uplink of a node, as a network service would: up, with exactly its addresses, and default routes.
    pub(crate) fn configure_uplink(&self, node: &str) -> Result<()> {
        let wanted = self.uplink(node)?;
        let mut host = self.host(node)?;
        let uplink = host.get_link(UPLINK)?;
        host.route.request(link::up(&uplink))?;
        let existing = address::list(&mut host.route, uplink.index)?;
        let is_wanted = |ip: IpAddr| wanted.addresses.iter().any(|address| address.ip == ip);
        let mut batch = Batch::new();
        for one in existing.iter().filter(|one| is_configured(one.ip) && !is_wanted(one.ip)) {
            batch.push(address::delete(uplink.index, one.ip, one.prefix));
        }
        for one in wanted.addresses.iter().filter(|one| !existing.iter().any(|old| old.ip == one.ip)) {
            batch.push(address::add(uplink.index, one.ip, one.prefix, false));
        }
        for one in &wanted.addresses {
            batch.push(default_route(one.gateway, uplink.index).replace());
        }
        Ok(host.route.batch(batch)?)
    }

    /// The current uplink of a node. The fault `change-address` changes its addresses.
    pub(crate) fn uplink(&self, node: &str) -> Result<Uplink> {
        let number = self.state.spec.number(node).ok_or_else(|| Error::NoMachine {
            lab: self.state.spec.name.clone(),
            name: node.into(),
            machines: self.nodes(),
        })?;
        Ok(self.state.spec.uplink(number, self.state.has_fault(Fault::ChangeAddress, node)))
    }
}

/// Sets the uplink down. The kernel removes its routes.
pub(crate) fn set_uplink_down(host: &mut Host) -> Result<()> {
    let uplink = host.get_link(UPLINK)?;
    Ok(host.route.request(link::down(&uplink))?)
}

fn default_route(gateway: IpAddr, link: u32) -> Route {
    let any = IpFamily::of(gateway).unspecified();
    Route { gateway: Some(gateway), link: Some(link), ..Route::to(any, 0) }
}

fn bridge_name(subnet: u16) -> String {
    format!("lan{subnet}")
}

/// Whether an address was configured: link-local addresses are the kernel's.
fn is_configured(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(_) => true,
        IpAddr::V6(ip) => ip.segments()[0] & 0xffc0 != 0xfe80,
    }
}
