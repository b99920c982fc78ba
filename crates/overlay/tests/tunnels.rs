//! IPIP and WireGuard tunnels. The kernel may lack both: then run this in the virtual machine (`scripts/vm tunnels`).

#![allow(clippy::unwrap_used)] // A test that cannot continue panics.

mod lab;

use lab::{Lab, LabNode};
use podwire_ip::IpFamily;
use podwire_netlink::wireguard::Key;
use podwire_overlay::wireguard::{key_text, parse_key, private_key, Mode};
use podwire_overlay::{Backend, Ipip, VtepMac, Vxlan, Wireguard};
use podwire_tests::needs;

fn ipip() -> Ipip {
    Ipip::default()
}

#[test]
fn pods_reach_each_other_over_ipip() {
    if !needs("ipip") {
        return;
    }
    let lab = Lab::new(1480);
    assert_eq!(ipip().mtu(&lab.node(1).local_node()), 1480);
    lab.build(&ipip());
    lab.assert_pairs_talk(1480, &[(1, 2), (2, 1), (1, 3), (3, 1)], &[IpFamily::V4]);
    let n1 = lab.node(1);
    assert_eq!(
        n1.routes(),
        [
            "10.244.2.0/24 via 192.168.10.12 dev flannel.ipip onlink",
            "10.244.3.0/24 via 192.168.20.13 dev flannel.ipip onlink",
        ]
    );
    assert!(lab.apply(1, &ipip()).is_quiet());
    // The address changes in place.
    n1.node.sh("ip address del 192.168.10.11/24 dev eth0 && ip address add 192.168.10.21/24 dev eth0 \
         && ip route replace default via 192.168.10.1");
    lab.build(&ipip());
    assert!(n1.node.sh("ip -d link show flannel.ipip").contains("local 192.168.10.21"));
    lab.assert_pairs_talk(1480, &[(1, 3), (2, 1)], &[IpFamily::V4]);
    for damage in [
        "ip link del flannel.ipip",
        "ip link set flannel.ipip down",
        "ip link set flannel.ipip mtu 1300",
        "ip link del flannel.ipip; ip link add flannel.ipip type ipip local 192.168.10.21 remote 192.168.10.77",
        "ip address flush dev flannel.ipip",
        "ip route flush proto 112",
    ] {
        n1.node.sh(damage);
        assert!(!lab.apply(1, &ipip()).changed.is_empty(), "{damage}");
        let again = lab.apply(1, &ipip());
        assert!(again.is_quiet(), "{damage}: {:#?}", again.changed);
        assert!(lab.pings(1, 3, IpFamily::V4) && lab.pings(1, 2, IpFamily::V4), "{damage}");
    }
    let direct = Ipip { direct: true, ..ipip() };
    lab.build(&direct);
    assert!(
        n1.routes().contains(&"10.244.2.0/24 via 192.168.10.12 dev eth0".to_string()),
        "{:?}",
        n1.routes()
    );
    lab.assert_pairs_talk(1480, &[(1, 2), (1, 3)], &[IpFamily::V4]);
}

/// The backend of one node: each node has its own private key.
fn wireguard(number: u8, mode: Mode) -> Wireguard {
    let mut secret = [number; 32];
    secret[0] &= 248;
    secret[31] = secret[31] & 127 | 64;
    Wireguard { mode, preshared_key: Some(Key([9; 32])), ..Wireguard::new(Key(secret)) }
}

fn build(lab: &Lab, mode: Mode) {
    for _ in 0..2 {
        for node in &lab.nodes {
            lab.apply(node.number, &wireguard(node.number, mode));
        }
    }
}

fn devices(node: &LabNode) -> String {
    node.node.sh("ip -br link show type wireguard | cut -d' ' -f1 | sort | paste -sd' '")
}

#[test]
fn pods_reach_each_other_over_wireguard_in_both_families() {
    if !needs("wireguard") {
        return;
    }
    let lab = Lab::new(1420);
    assert_eq!(wireguard(1, Mode::Separate).mtu(&lab.node(1).local_node()), 1420);
    build(&lab, Mode::Separate);
    lab.assert_pairs_talk(1420, &[(1, 2), (2, 1), (1, 3), (3, 1)], &IpFamily::ALL);
    let n1 = lab.node(1);
    assert_eq!(devices(n1), "flannel-wg flannel-wg-v6\n");
    assert_eq!(n1.routes(), ["10.244.0.0/16 via - dev flannel-wg", "fd00:244::/48 via - dev flannel-wg-v6"]);
    assert!(lab.apply(1, &wireguard(1, Mode::Separate)).is_quiet());
    for damage in ["ip link del flannel-wg", "ip link set flannel-wg down", "ip route flush proto 112"] {
        n1.node.sh(damage);
        lab.apply(1, &wireguard(1, Mode::Separate));
        let again = lab.apply(1, &wireguard(1, Mode::Separate));
        assert!(again.is_quiet(), "{damage}: {:#?}", again.changed);
        assert!(lab.pings(1, 3, IpFamily::V4) && lab.pings(3, 1, IpFamily::V4), "{damage}");
    }
    // n2 lost its key: the old key is removed and the new one gets the addresses.
    lab.apply(2, &wireguard(42, Mode::Separate));
    let changed = lab.apply(1, &wireguard(1, Mode::Separate)).changed;
    assert_eq!(changed.len(), 4, "{changed:#?}");
    assert!(lab.pings(1, 2, IpFamily::V4) && lab.pings(1, 2, IpFamily::V6));
    // And to another backend.
    lab.build(&Vxlan { mac: VtepMac::Derived, ..Vxlan::default() });
    assert_eq!(devices(n1), "\n");
    lab.assert_pairs_talk(1420, &[(1, 3)], &IpFamily::ALL);
}

#[test]
fn one_wireguard_device_carries_both_families() {
    if !needs("wireguard") {
        return;
    }
    let lab = Lab::new(1420);
    for mode in [Mode::Auto, Mode::Ipv6] {
        build(&lab, mode);
        assert_eq!(devices(lab.node(1)), "flannel-wg\n");
        lab.assert_pairs_talk(1420, &[(1, 2), (3, 1)], &IpFamily::ALL);
        assert!(lab.apply(1, &wireguard(1, mode)).is_quiet());
    }
}

#[test]
fn the_private_key_is_created_once_and_readable_by_root_only() {
    use std::os::unix::fs::PermissionsExt;
    let folder = std::env::temp_dir().join(format!("podwire-overlay-{}", std::process::id()));
    let path = folder.join("wgkey");
    let first = private_key(&path).unwrap();
    assert_eq!(private_key(&path).unwrap(), first);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o400);
    assert_eq!(parse_key(&key_text(first)), Some(first));
    std::fs::write(&path, "nonsense").unwrap();
    let error = private_key(&path).unwrap_err().to_string();
    assert!(error.contains("not 32 bytes in base64; delete it to get a new key"), "{error}");
    std::fs::remove_dir_all(folder).unwrap();
}
