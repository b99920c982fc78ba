//! The eBPF programs of the agent's fast path at a device: what plugins must know of them.

use podwire_netlink::rt::link::Link;
use podwire_netlink::rt::tc::program::{self, Direction};

use crate::error::Result;
use crate::host::Host;

/// The name of the programs as filters of a device.
pub const FILTER: &str = "podwire_fast_path";

/// Removes the programs from a device; other filters stay. Returns whether there were programs.
pub fn remove(host: &mut Host, link: &Link) -> Result<bool> {
    let mut filters = Vec::new();
    for direction in Direction::ALL {
        filters.extend(program::filters(&mut host.route, link.index, direction)?);
    }
    if !filters.iter().any(|filter| filter.name == FILTER) {
        return Ok(false);
    }
    let has_others = filters.iter().any(|filter| filter.name != FILTER);
    let requests = match has_others {
        true => Direction::ALL.map(|direction| program::delete(link.index, &link.name, direction)).into(),
        false => vec![program::delete_clsact(link.index, &link.name)],
    };
    for request in requests {
        match host.route.request(request) {
            // Deleted meanwhile.
            Err(error) if error.is_gone() => {}
            other => other?,
        }
    }
    Ok(true)
}
