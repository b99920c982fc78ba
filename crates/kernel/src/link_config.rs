//! What a link has besides itself: its addresses and the routes through it. The kernel takes them away when a link
//! moves to another namespace, and some of them when it joins or leaves a VRF; whoever does that to a link puts them
//! back from here.

use podwire_netlink::rt::address::{self, Address};
use podwire_netlink::rt::route::{self, Route};
use podwire_netlink::{Batch, Message};

use crate::{Host, Result};

const SCOPE_LINK: u8 = 253; // RT_SCOPE_LINK, linux/rtnetlink.h

/// Addresses of a link and routes through it, but for those that the kernel makes by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkConfig {
    /// Its addresses, without those that are valid on the link only.
    pub addresses: Vec<Address>,
    /// The routes through it, of every table, without those that follow from an address.
    pub routes: Vec<Route>,
}

impl LinkConfig {
    /// Those of the link number `link`.
    pub fn read(host: &mut Host, link: u32) -> Result<LinkConfig> {
        let mut addresses = address::list(&mut host.route, link)?;
        addresses.retain(|one| one.scope != SCOPE_LINK);
        let mut routes = route::list(&mut host.route)?;
        routes.retain(|one| one.link == Some(link) && one.protocol != route::BY_KERNEL);
        // What is on the wire comes before what leads through a gateway that is on the wire.
        routes.sort_by_key(|one| one.gateway.is_some());
        Ok(LinkConfig { addresses, routes })
    }

    /// The same with the routes of table `from` in table `to`.
    pub fn with_table(mut self, from: u32, to: u32) -> LinkConfig {
        self.routes.iter_mut().filter(|one| one.table == from).for_each(|one| one.table = to);
        self
    }

    /// Gives the link number `link` what it lacks of these.
    pub fn restore(&self, host: &mut Host, link: u32) -> Result<()> {
        let found = LinkConfig::read(host, link)?;
        let has = |wanted: &&Address| {
            found.addresses.iter().any(|one| (one.ip, one.prefix) == (wanted.ip, wanted.prefix))
        };
        let mut batch = Batch::new();
        let lacking = self.addresses.iter().filter(|wanted| !has(wanted));
        batch.extend(lacking.map(|one| one.give_to(link)));
        batch.extend(self.routes_lacking(&found.routes, link));
        Ok(host.route.batch(batch)?)
    }

    fn routes_lacking(&self, found: &[Route], link: u32) -> Vec<Message> {
        let here = |one: &Route| Route { link: Some(link), ..one.clone() };
        let wanted = self.routes.iter().map(here);
        wanted.filter(|one| !found.contains(one)).map(|one| one.add()).collect()
    }
}
