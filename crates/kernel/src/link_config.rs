//! The addresses of a link and the routes through it. The kernel removes them when a link moves to another namespace,
//! and some of them when it joins or leaves a VRF; callers save them before and restore them after.

use podwire_netlink::rt::address::{self, Address};
use podwire_netlink::rt::route::{self, Route};
use podwire_netlink::{Batch, Message};

use crate::error::Result;
use crate::host::Host;

const SCOPE_LINK: u8 = 253; // RT_SCOPE_LINK, linux/rtnetlink.h

/// The addresses of a link and the routes through it, without those that the kernel creates itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkConfig {
    /// Its addresses, without link-local ones.
    pub addresses: Vec<Address>,
    /// The routes through it, of all tables, without those that belong to an address.
    pub routes: Vec<Route>,
}

impl LinkConfig {
    /// Reads the configuration of the link with index `link`.
    pub fn read(host: &mut Host, link: u32) -> Result<LinkConfig> {
        let mut addresses = address::list(&mut host.route, link)?;
        addresses.retain(|one| one.scope != SCOPE_LINK);
        let mut routes = route::list(&mut host.route)?;
        routes.retain(|one| one.link == Some(link) && one.protocol != route::BY_KERNEL);
        // Routes to links come before routes via gateways on those links.
        routes.sort_by_key(|one| one.gateway.is_some());
        Ok(LinkConfig { addresses, routes })
    }

    /// The same configuration with the routes of table `from` in table `to`.
    pub fn with_table(mut self, from: u32, to: u32) -> LinkConfig {
        self.routes.iter_mut().filter(|one| one.table == from).for_each(|one| one.table = to);
        self
    }

    /// Adds the missing addresses and routes to the link with index `link`.
    pub fn restore(&self, host: &mut Host, link: u32) -> Result<()> {
        let found = LinkConfig::read(host, link)?;
        let has = |wanted: &&Address| {
            found.addresses.iter().any(|one| (one.ip, one.prefix) == (wanted.ip, wanted.prefix))
        };
        let mut batch = Batch::new();
        let missing = self.addresses.iter().filter(|wanted| !has(wanted));
        batch.extend(missing.map(|one| one.add_to(link)));
        batch.extend(self.missing_routes(&found.routes, link));
        Ok(host.route.batch(batch)?)
    }

    fn missing_routes(&self, found: &[Route], link: u32) -> Vec<Message> {
        let here = |one: &Route| Route { link: Some(link), ..one.clone() };
        let wanted = self.routes.iter().map(here);
        wanted.filter(|one| !found.contains(one)).map(|one| one.add()).collect()
    }
}
