//! The eBPF programs of the agent's fast path: what plugins must know of them.
//!
//! Programs are filters of the qdisc `clsact`. Adding or deleting a qdisc of a device that is up makes the kernel
//! drop the device's packets for a tenth of a millisecond. So a plugin adds it while it creates a pod's device, and the
//! agent only adds and deletes programs.

use podwire_netlink::nft::{self, Family, Table};
use podwire_netlink::rt::tc::program::{self, Direction};
use podwire_netlink::Socket;

use crate::error::Result;
use crate::host::Host;
use crate::sysctl;

/// The name of the programs as filters of a device.
pub const FILTER: &str = "podwire_fast_path";

/// The qdisc that holds programs.
pub const CLSACT: &str = "clsact";

/// The nftables table of the fast path.
pub const TABLE: Table = Table::named(Family::Inet, "podwire_fast_path");

/// The sysctls that make conntrack accept gaps between packets. It does not see the packets that programs redirect, so the
/// next one that it sees is ahead of its window. The second key is for RST: without it, an RST after more than 2 GB counts
/// as forged.
pub const CONNTRACK_SYSCTLS: [&str; 2] =
    ["net/netfilter/nf_conntrack_tcp_be_liberal", "net/netfilter/nf_conntrack_tcp_ignore_invalid_rst"];

/// Whether an agent has set up the fast path on this node. Without it this reads one sysctl.
pub fn is_on(node: &mut Host) -> Result<bool> {
    if CONNTRACK_SYSCTLS.iter().any(|key| !matches!(sysctl::read(key).as_deref(), Ok("1"))) {
        return Ok(false);
    }
    match node.find_nft()? {
        Some(nft) => Ok(nft::has_table(nft, &TABLE)?),
        None => Ok(false),
    }
}

/// The filters of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filters {
    /// The number of our programs; two if they are complete.
    pub programs: usize,
    /// Whether another program has filters there.
    pub has_others: bool,
}

/// Reads the filters of a device.
pub fn find(route: &mut Socket, index: u32) -> Result<Filters> {
    let mut found = Filters::default();
    for direction in Direction::ALL {
        for filter in program::filters(route, index, direction)? {
            if filter.name == FILTER {
                found.programs += 1;
            } else {
                found.has_others = true;
            }
        }
    }
    Ok(found)
}

/// Removes the programs from a device; other filters stay. Returns whether there were programs.
pub fn remove_programs(route: &mut Socket, index: u32, name: &str) -> Result<bool> {
    let mut removed = false;
    for direction in Direction::ALL {
        let filters = program::filters(route, index, direction)?;
        if filters.iter().any(|filter| filter.name == FILTER) {
            ignore_gone(route.request(program::delete(index, name, direction)))?;
            removed = true;
        }
    }
    Ok(removed)
}

/// Removes the programs from a device, with the qdisc unless another program has filters there. Returns whether
/// there were programs.
pub fn remove_with_qdisc(route: &mut Socket, index: u32, name: &str) -> Result<bool> {
    let found = find(route, index)?;
    if found.has_others {
        return remove_programs(route, index, name);
    }
    match route.request(program::delete_clsact(index, name)) {
        // There is none, or the qdisc `ingress`.
        Err(error) if error.errno() == Some(libc::EINVAL) => {}
        other => ignore_gone(other)?,
    }
    Ok(found.programs > 0)
}

/// Something that another process deleted meanwhile is no failure.
fn ignore_gone(result: podwire_netlink::Result<()>) -> Result<()> {
    match result {
        Err(error) if error.is_gone() => Ok(()),
        other => Ok(other?),
    }
}
