//! The drivers of the running kernel. A test of a device without a driver is skipped with a message. In the emulated
//! machine (`scripts/vm`), whose kernel has all drivers, a missing driver is a failure.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Mutex;

use crate::Node;

/// Set where every driver must exist.
const REQUIRED: &str = "PODWIRE_REQUIRE_DRIVERS";
/// The drivers that the host of the emulated machine has already tested, faster.
const TRIED: &str = "PODWIRE_TRIED_DRIVERS";

/// The result for each driver that was looked up.
static FOUND: Mutex<BTreeMap<String, bool>> = Mutex::new(BTreeMap::new());

/// Whether the kernel has the driver: a kind of link such as `ipvlan`, or `tun`. A missing driver is printed once; with
/// `PODWIRE_REQUIRE_DRIVERS` the test fails. A driver in `PODWIRE_TRIED_DRIVERS` is not tested again.
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
    assert!(there || std::env::var_os(REQUIRED).is_none(), "this kernel must have {driver}, but has not");
    if !there {
        // Not println: the test runner captures it.
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

/// Whether a table of all plugin types should test this one. Where every driver must exist, only the types that need a
/// driver which other kernels may lack: the others are tested faster elsewhere.
pub fn should_try(kind: &str) -> bool {
    can_serve(kind) && (driver_of(kind).is_some() || std::env::var_os(REQUIRED).is_none())
}

/// Whether the kernel has the driver, even if it was tested elsewhere. It tries to create a device: most drivers then
/// report a missing argument (a master, an id), which a missing driver cannot.
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
