//! Hand-over to another program, such as flanneld: the routes and tunnels keep working, and all marks of ownership are
//! removed.
//!
//! Devices, neighbours and FDB entries have no owner; flanneld uses them as they are. Routes have our protocol number,
//! devices our alias, and the firewall has our tables. Steps: (1) each route gets protocol `boot`, replaced in one
//! message so that packets keep flowing; (2) the alias is removed; (3) the tables are deleted last.

use podwire_kernel::firewall::{cluster as rules, tunnel};
use podwire_kernel::Host;
use podwire_netlink::rt::link::{self, attribute as a};
use podwire_netlink::rt::route::{self, Route};
use podwire_netlink::Batch;

use crate::apply;
use crate::error::Result;
use crate::ownership::{ALIAS, PROTOCOL};

/// Gives up the ownership of all routes, devices and rules of this node. Returns a description of each change.
///
/// Preconditions: our agent no longer runs on the node (it would take everything back), and the next program has
/// already installed its firewall rules.
pub fn hand_over(host: &mut Host) -> Result<Vec<String>> {
    let mut batch = Batch::new();
    let mut done = Vec::new();
    for own in apply::main_table(host)?.into_iter().filter(|route| route.protocol == PROTOCOL) {
        let released = Route { protocol: route::BY_TOOL, ..own };
        done.push(format!("set protocol boot on the route to {}/{}", released.dst, released.prefix));
        batch.extend([released.replace()]);
    }
    for own in link::list(&mut host.route)?.iter().filter(|link| link.alias == ALIAS) {
        let doing = format!("remove the alias of {}", own.name);
        done.push(doing.clone());
        batch.extend([link::change(own.index, doing).bytes(a::IFALIAS, &[])]);
    }
    // Objects that have disappeared meanwhile need no change.
    if let Some((_, error)) = host.route.batch_each(batch)?.into_iter().find(|(_, error)| !error.is_gone()) {
        return Err(error.into());
    }
    if rules::remove(host.nft()?)? {
        done.push(format!("delete table {}", rules::TABLE));
    }
    if tunnel::remove(host.nft()?)? {
        done.push(format!("delete table {}", tunnel::TABLE));
    }
    Ok(done)
}
