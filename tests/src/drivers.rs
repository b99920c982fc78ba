//! What the running kernel can do. A test of a device that this kernel has no driver for is left out, and it is said
//! so; in the emulated machine (`scripts/vm`), whose kernel has them all, leaving out is failing.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Mutex;

use crate::Node;

/// Set where every driver must be there.
const REQUIRED: &str = "PODWIRE_REQUIRE_DRIVERS";
/// The drivers that another machine has tried already, and faster: those of the emulated machine's host.
const TRIED: &str = "PODWIRE_TRIED_DRIVERS";

/// What was found of each driver that was asked for.
static FOUND: Mutex<BTreeMap<String, bool>> = Mutex::new(BTreeMap::new());

/// Whether the kernel has the driver: a kind of link such as `ipvlan`, or `tun`. If it has not, that is printed once;
/// and where `PODWIRE_REQUIRE_DRIVERS` is set, the test fails. One in `PODWIRE_TRIED_DRIVERS` need not be tried again.
pub fn needs(driver: &str) -> bool {
    let mut found = FOUND.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(there) = found.get(driver) {
        return *there;
    }
    let tried = std::env::var(TRIED).unwrap_or_default();
    if tried.split(' ').any(|one| one == driver) {
        return false;
    }
    let there = has(driver);
    assert!(
        there || std::env::var_os(REQUIRED).is_none(),
        "this kernel was said to have {driver}, and has not"
    );
    if !there {
        // Not by println: the test runner would keep it to itself.
        drop(writeln!(std::io::stderr(), "left out: {driver}, which this kernel has no driver for"));
    }
    found.insert(driver.into(), there);
    there
}

/// The driver that plugins of this type need and kernels may lack.
fn driver_of(kind: &str) -> Option<&str> {
    match kind {
        "macvlan" | "ipvlan" | "vlan" | "dummy" | "vrf" => Some(kind),
        "tap" => Some("tun"),
        _ => None,
    }
}

/// Whether plugins of this type can serve pods on this kernel.
pub fn can_serve(kind: &str) -> bool {
    driver_of(kind).is_none_or(needs)
}

/// Whether a table of all plugin types should try this one: where every driver must be there, only those whose driver
/// others may lack. The rest is tried everywhere else, and faster.
pub fn should_try(kind: &str) -> bool {
    can_serve(kind) && (driver_of(kind).is_some() || std::env::var_os(REQUIRED).is_none())
}

/// Whether the kernel has the driver, whoever may have tried it already. It is asked for a device; most drivers then miss
/// something (a master, an id), and say so themselves. One that is not there cannot.
pub fn has(driver: &str) -> bool {
    let attempt = match driver {
        "tun" => "ip tuntap add mode tap name probe".to_string(),
        "vlan" => "ip link add probe type vlan id 1".to_string(),
        "vrf" => "ip link add probe type vrf table 10".to_string(),
        kind => format!("ip link add probe type {kind}"),
    };
    let said = Node::new().sh(&format!("LC_ALL=C {attempt} 2>&1 || true"));
    !["Unknown device type", "not supported", "No such file", "No such device"]
        .iter()
        .any(|no| said.contains(no))
}
