//! Attaches programs to devices, and removes them.

use podwire_kernel::fast_path::{self, CLSACT, TABLE};
use podwire_kernel::Host;
use podwire_netlink::rt::link::{self, Link};
use podwire_netlink::rt::tc::program::{self, Direction};
use podwire_netlink::rt::tc::{self, Qdisc};
use podwire_netlink::{nft, Socket};

use crate::devices::{self, Device, Role};
use crate::error::{Error, Result};
use crate::programs::Programs;

/// Attaches the programs unless they are there. A device with filters of another program gets none: packets on the fast
/// path would skip them.
pub(crate) fn ensure(
    route: &mut Socket,
    programs: &Programs,
    index: u32,
    device: &Device,
    is_attached: bool,
) -> Result<()> {
    let found = fast_path::find(route, index)?;
    if found.has_others {
        fast_path::remove_programs(route, index, &device.name)?;
        return Err(Error::OtherFilters);
    }
    if is_attached && found.programs == Direction::ALL.len() {
        return Ok(());
    }
    attach(route, programs, index, device)
}

/// Attaches the programs for a device's role, in place of those of an earlier agent. The device of a pod has the
/// qdisc from its creation.
fn attach(route: &mut Socket, programs: &Programs, index: u32, device: &Device) -> Result<()> {
    if device.role == Role::Uplink {
        match route.request(program::add_clsact(index, &device.name)) {
            Err(error) if error.is_exists() => {}
            other => other?,
        }
    }
    // 1. Egress learns flows that 2. ingress redirects.
    for direction in [Direction::Egress, Direction::Ingress] {
        let program = programs.of(device.role, direction)?;
        route.request(program::set(index, &device.name, direction, fast_path::FILTER, program))?;
    }
    Ok(())
}

/// Removes our programs from all devices that may not have them; the devices of pods keep the qdisc. Returns the names
/// of the devices.
pub(crate) fn detach_others(
    host: &mut Host,
    links: &[Link],
    qdiscs: &[Qdisc],
    keep: impl Fn(u32) -> bool,
) -> Result<Vec<String>> {
    let mut removed = Vec::new();
    for link in links.iter().filter(|link| !keep(link.index)) {
        // `ingress`: a plugin may have replaced the qdisc just before the programs were attached.
        let can_hold = |one: &Qdisc| one.link == link.index && [CLSACT, "ingress"].contains(&&*one.kind);
        if !qdiscs.iter().any(can_hold) || fast_path::find(&mut host.route, link.index)?.programs == 0 {
            continue;
        }
        if devices::is_pod(link) {
            fast_path::remove_programs(&mut host.route, link.index, &link.name)?;
        } else {
            fast_path::remove_with_qdisc(&mut host.route, link.index, &link.name)?;
        }
        removed.push(link.name.clone());
    }
    Ok(removed)
}

/// Removes the fast path of the node: packets take the normal path, and connections go on. Returns a text for each thing
/// that was removed. The sysctls that make conntrack liberal stay, because it has not seen all packets of the
/// connections.
pub fn remove(host: &mut Host) -> Result<Vec<String>> {
    let mut removed = Vec::new();
    if let Some(nft) = host.find_nft()? {
        if nft::remove_table(nft, &TABLE)? {
            removed.push(format!("table {TABLE}"));
        }
    }
    let links = link::list(&mut host.route)?;
    let qdiscs = tc::list_all(&mut host.route)?;
    let devices = detach_others(host, &links, &qdiscs, |_| false)?;
    removed.extend(devices.into_iter().map(|name| format!("the programs of {name}")));
    Ok(removed)
}
