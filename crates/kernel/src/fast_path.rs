//! The eBPF programs of the agent's fast path: what plugins must know of them.
//!
//! Programs are filters of the discipline `clsact`. Adding or deleting a discipline of a device that is up makes the kernel
//! drop the device's packets for a tenth of a millisecond. So a plugin adds it while it creates a pod's device, and the
//! agent only adds and deletes programs.

use podwire_netlink::nft::{self, Family, Table};
use podwire_netlink::rt::link::Link;
use podwire_netlink::rt::tc;
use podwire_netlink::rt::tc::program::{self, Direction};
use podwire_netlink::Message;

use crate::error::Result;
use crate::host::Host;
use crate::sysctl;

/// The name of the programs as filters of a device.
pub const FILTER: &str = "podwire_fast_path";

/// The discipline that holds programs.
pub const CLSACT: &str = "clsact";

/// The nftables table of the fast path.
pub const TABLE: Table = Table::named(Family::Inet, "podwire_fast_path");

/// The sysctls that make conntrack accept gaps between packets. It does not see the packets that programs redirect, so the
/// next one that it sees is ahead of its window. The second key is for RST: without it, an RST after more than 2 GB counts
/// as forged.
pub const LIBERAL: [&str; 2] =
    ["net/netfilter/nf_conntrack_tcp_be_liberal", "net/netfilter/nf_conntrack_tcp_ignore_invalid_rst"];

/// Whether an agent has set up the fast path on this node. Without it this reads one sysctl.
pub fn is_on(node: &mut Host) -> Result<bool> {
    if LIBERAL.iter().any(|key| !matches!(sysctl::read(key).as_deref(), Ok("1"))) {
        return Ok(false);
    }
    match node.find_nft()? {
        Some(nft) => Ok(nft::has_table(nft, &TABLE)?),
        None => Ok(false),
    }
}

/// Removes the programs from a device; other filters stay. Returns whether there were programs.
pub fn remove_programs(host: &mut Host, link: &Link) -> Result<bool> {
    let mut removed = false;
    for direction in Direction::ALL {
        let filters = program::filters(&mut host.route, link.index, direction)?;
        if filters.iter().any(|filter| filter.name == FILTER) {
            request(host, program::delete(link.index, &link.name, direction))?;
            removed = true;
        }
    }
    Ok(removed)
}

/// Deletes the discipline for programs, unless it holds filters.
pub fn remove_discipline(host: &mut Host, link: &Link) -> Result<()> {
    if !tc::list(&mut host.route, link.index)?.iter().any(|one| one.kind == CLSACT) {
        return Ok(());
    }
    for direction in Direction::ALL {
        if !program::filters(&mut host.route, link.index, direction)?.is_empty() {
            return Ok(());
        }
    }
    request(host, program::delete_clsact(link.index, &link.name))
}

/// Something that another process deleted meanwhile is no failure.
fn request(host: &mut Host, message: Message) -> Result<()> {
    match host.route.request(message) {
        Err(error) if error.is_gone() => Ok(()),
        other => Ok(other?),
    }
}
