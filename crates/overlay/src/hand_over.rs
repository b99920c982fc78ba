//! The way back: whoever builds roads on this node after us finds them open, and nothing that tells of us.
//!
//! Devices, neighbours and forwarding entries have no owner: flanneld takes them as they are. Routes bear our number, devices
//! our note, and the firewall has our table. Routes get the number of those that nobody signed, each in one message, so that
//! packets go on; the note goes; the table goes last.

use podwire_kernel::firewall::cluster as rules;
use podwire_kernel::Host;
use podwire_netlink::rt::link::{self, attribute as a};
use podwire_netlink::rt::route::{self, Route};
use podwire_netlink::Batch;

use crate::{apply, Result, ALIAS, PROTOCOL};

/// Gives the roads of this node away; says in words what it did. For a node on which our agent does not run any more (it
/// would take them back), and on which the rules of who comes after us stand already: ours go.
pub fn hand_over(host: &mut Host) -> Result<Vec<String>> {
    let mut batch = Batch::new();
    let mut done = Vec::new();
    for own in apply::main_table(host)?.into_iter().filter(|route| route.protocol == PROTOCOL) {
        let unsigned = Route { protocol: route::BY_TOOL, ..own };
        done.push(format!("the route to {}/{} is nobody's", unsigned.dst, unsigned.prefix));
        batch.extend([unsigned.replace()]);
    }
    for own in link::list(&mut host.route)?.iter().filter(|link| link.alias == ALIAS) {
        let doing = format!("take our note off {}", own.name);
        done.push(doing.clone());
        batch.extend([link::change(own.index, doing).bytes(a::IFALIAS, &[])]);
    }
    // What vanished meanwhile needs nobody.
    if let Some((_, error)) = host.route.batch_each(batch)?.into_iter().find(|(_, error)| !error.is_gone()) {
        return Err(error.into());
    }
    if rules::remove(host.nft()?)? {
        done.push(format!("delete table {}", rules::TABLE));
    }
    Ok(done)
}
