//! The same requests to Debian's Go plugins and to Podwire's, on two equal nodes: the outcomes must be the same, except
//! for the differences in `docs/differences.md`.

mod bridge;
mod chained;
mod differences;
mod ipam;
mod neighbours;
mod packets;
mod single;

use podwire_tests::{compare, Case};

use differences::DIFFERENCES;

#[test]
fn pods_on_a_bridge() {
    compare(&bridge::cases(), DIFFERENCES);
}

#[test]
fn a_bridge_in_every_version_of_the_spec() {
    compare(&bridge::versions(), DIFFERENCES);
}

#[test]
fn bridge_errors() {
    compare(&bridge::refusals(), DIFFERENCES);
}

#[test]
fn ptp_pods() {
    compare(&single::ptp(), DIFFERENCES);
}

#[test]
fn macvlan_pods() {
    compare(&single::macvlan(), DIFFERENCES);
}

#[test]
fn the_pods_own_loopback() {
    compare(&single::loopback(), DIFFERENCES);
}

#[test]
fn addresses_of_this_node() {
    compare(&ipam::host_local(), DIFFERENCES);
}

#[test]
fn host_local_errors() {
    compare(&ipam::host_local_refusals(), DIFFERENCES);
}

#[test]
fn addresses_as_written() {
    compare(&ipam::fixed(), DIFFERENCES);
}

#[test]
fn port_maps_and_firewalls() {
    compare(&chained::port_maps(), DIFFERENCES);
}

#[test]
fn limits() {
    compare(&chained::limits(), DIFFERENCES);
}

#[test]
fn tuned_interfaces() {
    compare(&chained::tuning(), DIFFERENCES);
}

#[test]
fn routes_by_source() {
    compare(&chained::sbr(), DIFFERENCES);
}

#[test]
fn every_difference_shows_in_a_case_and_is_explained_to_users() {
    let page = std::fs::read_to_string(podwire_tests::project("docs/differences.md")).unwrap();
    let all: Vec<Case> = [
        bridge::cases(),
        bridge::versions(),
        bridge::refusals(),
        single::ptp(),
        single::macvlan(),
        single::loopback(),
        ipam::host_local(),
        ipam::host_local_refusals(),
        ipam::fixed(),
        chained::port_maps(),
        chained::limits(),
        chained::tuning(),
        chained::sbr(),
    ]
    .concat();
    for difference in DIFFERENCES {
        let name = difference.name;
        assert!(all.iter().any(|case| case.differences().any(|one| one == name)), "no case shows {name:?}");
        assert!(
            page.lines().any(|line| line == format!("### {name}")),
            "docs/differences.md has no heading {name:?}"
        );
    }
}
