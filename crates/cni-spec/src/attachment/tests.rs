use ipnet::{Ipv4Net, Ipv6Net};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use serde_json::json;

use super::*;

/// A pod with everything: both families twice, and every attribute that 1.1.0 has.
const FULL: &str = r#"{
    "cniVersion": "1.1.0",
    "interfaces": [
        {"name": "cni0", "mac": "0a:00:00:00:00:01"},
        {"name": "eth0", "mac": "0a:00:00:00:00:02", "mtu": 1450, "sandbox": "/run/netns/a",
         "socketPath": "/run/vhost.sock", "pciID": "0000:00:01.0"}
    ],
    "ips": [
        {"interface": 1, "address": "10.1.0.5/16", "gateway": "10.1.0.1"},
        {"interface": 1, "address": "10.2.0.5/16"},
        {"interface": 1, "address": "fd00::5/64", "gateway": "fd00::1"},
        {"address": "fd01::5/64"}
    ],
    "routes": [
        {"dst": "0.0.0.0/0", "gw": "10.1.0.1", "mtu": 1400, "advmss": 1360, "priority": 10, "table": 0, "scope": 0},
        {"dst": "::/0", "gw": "fd00::1"},
        {"dst": "10.9.0.1/8"}
    ],
    "dns": {"nameservers": ["10.1.0.1"], "domain": "d", "search": ["s"], "options": ["ndots:5"]}
}"#;

fn full() -> Attachment {
    read(serde_json::from_str(FULL).unwrap())
}

fn read(v: Value) -> Attachment {
    Attachment::from_json(&v, Version::CURRENT).unwrap()
}

fn refused(v: Value) -> (u32, String) {
    let error = Attachment::from_json(&v, Version::CURRENT).unwrap_err();
    (error.code, error.msg)
}

/// The exact text, without the white space between tokens.
fn golden(attachment: &Attachment, version: Version, expected: &str) {
    let packed = serde_json::from_str::<Value>(expected).unwrap().to_string();
    assert_eq!(attachment.to_json(version).unwrap().to_string(), packed, "as {version}");
}

#[test]
fn version_1_x_keeps_everything_in_gos_order() {
    golden(&full(), Version::V1_1_0, FULL);
    golden(&full(), Version::V1_0_0, &FULL.replace("1.1.0", "1.0.0"));
    assert_eq!(full(), read(serde_json::from_str(&FULL.replace("1.1.0", "1.0.0")).unwrap()));
}

#[test]
fn version_0_3_and_0_4_name_the_family_and_drop_what_they_do_not_know() {
    let expected = r#"{
        "cniVersion": "0.4.0",
        "interfaces": [
            {"name": "cni0", "mac": "0a:00:00:00:00:01"},
            {"name": "eth0", "mac": "0a:00:00:00:00:02", "sandbox": "/run/netns/a"}
        ],
        "ips": [
            {"version": "4", "interface": 1, "address": "10.1.0.5/16", "gateway": "10.1.0.1"},
            {"version": "4", "interface": 1, "address": "10.2.0.5/16"},
            {"version": "6", "interface": 1, "address": "fd00::5/64", "gateway": "fd00::1"},
            {"version": "6", "address": "fd01::5/64"}
        ],
        "routes": [
            {"dst": "0.0.0.0/0", "gw": "10.1.0.1", "mtu": 1400, "advmss": 1360, "priority": 10, "table": 0,
             "scope": 0},
            {"dst": "::/0", "gw": "fd00::1"},
            {"dst": "10.9.0.1/8"}
        ],
        "dns": {"nameservers": ["10.1.0.1"], "domain": "d", "search": ["s"], "options": ["ndots:5"]}
    }"#;
    let mut known = full();
    known.interfaces[1] =
        Interface { mtu: 0, socket_path: "".into(), pci_id: "".into(), ..known.interfaces[1].clone() };
    for version in [Version::V0_3_0, Version::V0_3_1, Version::V0_4_0] {
        let expected = expected.replace("0.4.0", version.as_str());
        golden(&full(), version, &expected);
        assert_eq!(read(serde_json::from_str(&expected).unwrap()), known);
    }
    // A 0.4.0 result that mentions an MTU all the same is read as 0.4.0.
    let v = json!({"cniVersion": "0.4.0", "interfaces": [{"name": "eth0", "mtu": 9000}]});
    assert_eq!(read(v).interfaces[0].mtu, 0);
}

#[test]
fn version_0_1_and_0_2_keep_the_first_address_of_each_family() {
    let expected = r#"{
        "cniVersion": "0.2.0",
        "ip4": {"ip": "10.1.0.5/16", "gateway": "10.1.0.1",
                "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}, {"dst": "10.9.0.1/8"}]},
        "ip6": {"ip": "fd00::5/64", "gateway": "fd00::1", "routes": [{"dst": "::/0", "gw": "fd00::1"}]},
        "dns": {"nameservers": ["10.1.0.1"], "domain": "d", "search": ["s"], "options": ["ndots:5"]}
    }"#;
    for version in [Version::V0_1_0, Version::V0_2_0] {
        let expected = expected.replace("0.2.0", version.as_str());
        golden(&full(), version, &expected);
        let up = read(serde_json::from_str(&expected).unwrap());
        let addresses: Vec<_> = up.ips.iter().map(|ip| ip.address.to_string()).collect();
        assert_eq!(addresses, ["10.1.0.5/16", "fd00::5/64"]);
        assert!(up.interfaces.is_empty() && up.ips.iter().all(|ip| ip.interface.is_none()));
        assert_eq!(up.routes.len(), 3);
        assert_eq!(up.dns, full().dns);
        golden(&up, version, &expected);
    }
}

#[test]
fn routes_of_a_family_without_address_get_lost_in_0_2_0() {
    let v =
        json!({"ips": [{"address": "fd00::5/64"}], "routes": [{"dst": "0.0.0.0/0"}, {"dst": "fd00::/8"}]});
    let text = r#"{"cniVersion":"0.2.0","ip6":{"ip":"fd00::5/64","routes":[{"dst":"fd00::/8"}]},"dns":{}}"#;
    assert_eq!(read(v).to_json(Version::V0_2_0).unwrap().to_string(), text);
}

#[test]
fn nothing_prints_as_little_as_the_version_allows() {
    let nothing = Attachment::default();
    golden(&nothing, Version::V1_1_0, r#"{"cniVersion": "1.1.0"}"#);
    golden(&nothing, Version::V1_0_0, r#"{"cniVersion": "1.0.0"}"#);
    golden(&nothing, Version::V0_3_1, r#"{"cniVersion": "0.3.1", "dns": {}}"#);
    let error = nothing.to_json(Version::V0_1_0).unwrap_err();
    assert_eq!(error.msg, "cannot convert: no valid IP addresses");
    assert_eq!(Attachment::from_json(&Value::Null, Version::V0_1_0), Ok(nothing));
}

#[test]
fn the_version_is_the_results_own_or_the_fallback() {
    let old = json!({"ip4": {"ip": "10.0.0.1/8"}, "ips": [{"address": "10.0.0.2/8"}]});
    let first = |v: &Value, fallback| Attachment::from_json(v, fallback).unwrap().ips[0].address.to_string();
    assert_eq!(first(&old, Version::V0_2_0), "10.0.0.1/8");
    assert_eq!(first(&old, Version::V0_3_0), "10.0.0.2/8");
    let mut stamped = old.clone();
    stamped["CNIVersion"] = json!("0.1.0");
    assert_eq!(first(&stamped, Version::V1_1_0), "10.0.0.1/8");
    stamped["CNIVersion"] = json!("");
    assert_eq!(first(&stamped, Version::V1_1_0), "10.0.0.2/8");
}

#[test]
fn keys_come_in_any_case_and_null_is_absent() {
    let attachment = read(json!({
        "CNIVersion": "1.0.0", "Interfaces": [{"Name": "eth0", "PciID": "x", "SOCKETPATH": "y"}], "Routes": null,
        "IPs": [{"Address": "10.0.0.1/8", "Gateway": "", "Interface": 0}, {"address": "::1/128", "interface": -1}],
        "DNS": {"Nameservers": null, "Search": ["s"]},
    }));
    assert_eq!(
        (attachment.interfaces[0].pci_id.as_str(), attachment.interfaces[0].socket_path.as_str()),
        ("x", "y")
    );
    assert_eq!((attachment.ips[0].gateway, attachment.ips[0].interface), (None, Some(0)));
    assert_eq!(attachment.ips[1].interface, None, "-1 was none once");
    assert_eq!(attachment.dns.search, ["s"]);
}

#[test]
fn mapped_ipv4_is_ipv4() {
    let attachment = read(json!({"ips": [{"address": "::ffff:10.0.0.5/112", "gateway": "::ffff:10.0.0.1"}]}));
    let text = r#"{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.0.0.5/16","gateway":"10.0.0.1"}],"dns":{}}"#;
    assert_eq!(attachment.to_json(Version::V0_4_0).unwrap().to_string(), text);
    let dressed =
        Attachment { ips: vec![Ip::new("::ffff:10.0.0.5/112".parse().unwrap())], ..Attachment::default() };
    let text = r#"{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.5/16"},"dns":{}}"#;
    assert_eq!(dressed.to_json(Version::V0_2_0).unwrap().to_string(), text);
}

#[test]
fn errors_name_the_place() {
    let place = |v| refused(v).1;
    assert_eq!(
        place(json!({"ips": [{"address": "10.0.0.1/8"}, {"gateway": "10.0.0.1"}]})),
        "ips[1]: missing field `address`"
    );
    assert_eq!(
        place(json!({"routes": [{"dst": "10.0.0.0/8", "gw": "x"}]})),
        "routes[0].gw: invalid IP address: \"x\""
    );
    assert_eq!(
        refused(json!({"cniVersion": "9.0.0"})),
        (code::INCOMPATIBLE_VERSION, "unsupported CNI result version \"9.0.0\"".to_owned())
    );
    assert_eq!(refused(json!({"cniVersion": 1})).0, code::DECODE);
    assert_eq!(refused(json!([])).0, code::DECODE);
    assert_eq!(refused(json!("ok")).0, code::DECODE);
}

#[test]
fn an_address_of_a_missing_interface_has_none() {
    let result = json!({"interfaces": [{"name": "a"}], "ips": [{"address": "10.0.0.1/8", "interface": 1}, {"address": "10.0.0.2/8", "interface": 0}]});
    let read = Attachment::from_json(&result, Version::V1_0_0).unwrap();
    assert_eq!((read.ips[0].interface, read.ips[1].interface), (None, Some(0)));
}

#[test]
fn a_result_that_crashes_its_reader_is_not_written() {
    let mut attachment = full();
    attachment.interfaces.truncate(1);
    assert_eq!(attachment.to_json(Version::V1_0_0).unwrap_err().code, code::INTERNAL);
    assert!(attachment.to_json(Version::V0_2_0).is_ok(), "0.2.0 has no interfaces");
}

/// Printed by the `static` plugin 1.1.1 of the reference project for `addresses` 10.1.0.5/16 and fd00::5/64 and the
/// route 10.9.0.1/8 via ::ffff:10.1.0.1.
#[test]
fn gos_own_output_is_reproduced() {
    let printed = [
        r#"{"cniVersion":"0.1.0","ip4":{"ip":"10.1.0.5/16","gateway":"10.1.0.1","routes":[{"dst":"10.9.0.1/8","gw":"10.1.0.1"}]},"ip6":{"ip":"fd00::5/64"},"dns":{}}"#,
        r#"{"cniVersion":"0.3.1","ips":[{"version":"4","address":"10.1.0.5/16","gateway":"10.1.0.1"},{"version":"6","address":"fd00::5/64"}],"routes":[{"dst":"10.9.0.1/8","gw":"10.1.0.1"}],"dns":{}}"#,
        r#"{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.5/16","gateway":"10.1.0.1"},{"address":"fd00::5/64"}],"routes":[{"dst":"10.9.0.1/8","gw":"10.1.0.1"}],"dns":{}}"#,
    ];
    let parsed = printed.map(|text| read(serde_json::from_str(text).unwrap()));
    assert!(parsed.iter().all(|attachment| *attachment == parsed[0]));
    for (text, version) in printed.into_iter().zip([Version::V0_1_0, Version::V0_3_1, Version::V1_0_0]) {
        // Newer libraries leave an empty `dns` out for 1.x, and so do we.
        let text = if version < Version::V1_0_0 { text.to_owned() } else { text.replace(r#","dns":{}"#, "") };
        assert_eq!(parsed[0].to_json(version).unwrap().to_string(), text);
    }
}

fn ip() -> impl Strategy<Value = IpAddr> {
    any::<IpAddr>().prop_map(|ip| ip.to_canonical())
}

fn net() -> impl Strategy<Value = IpNet> {
    (ip(), any::<u8>()).prop_map(|(ip, n)| match ip {
        IpAddr::V4(ip) => IpNet::V4(Ipv4Net::new(ip, n % 33).unwrap()),
        IpAddr::V6(ip) => IpNet::V6(Ipv6Net::new(ip, n % 129).unwrap()),
    })
}

prop_compose! {
    fn interface()(name in "\\PC{0,15}", mac in "\\PC{0,17}", mtu: u32, rest in vec("\\PC{0,9}", 3)) -> Interface {
        let [sandbox, socket_path, pci_id] = <[String; 3]>::try_from(rest).unwrap();
        Interface { name, mac, mtu, sandbox, socket_path, pci_id }
    }
}

prop_compose! {
    fn route()(dst in net(), gw in option::of(ip()), n in vec(option::of(1..u32::MAX), 3),
               table: Option<u32>, scope: Option<u32>) -> Route {
        Route { dst, gw, mtu: n[0], advmss: n[1], priority: n[2], table, scope }
    }
}

prop_compose! {
    fn dns()(lists in vec(vec("\\PC{0,5}", 0..3), 3), domain in "\\PC{0,5}") -> Dns {
        let [nameservers, search, options] = <[Vec<String>; 3]>::try_from(lists).unwrap();
        Dns { nameservers, domain, search, options }
    }
}

prop_compose! {
    fn attachment()(interfaces in vec(interface(), 0..4))(
        ips in vec((net(), option::of(ip()), option::of(0..interfaces.len().max(1))), 0..5),
        routes in vec(route(), 0..4), dns in dns(), interfaces in Just(interfaces),
    ) -> Attachment {
        let ips = ips.into_iter().map(|(address, gateway, interface)| {
            Ip { address, gateway, interface: interface.filter(|_| !interfaces.is_empty()) }
        });
        Attachment { ips: ips.collect(), interfaces, routes, dns }
    }
}

proptest! {
    #[test]
    fn version_1_x_loses_nothing(attachment in attachment()) {
        for version in [Version::V1_0_0, Version::V1_1_0] {
            let v = attachment.to_json(version).unwrap();
            prop_assert_eq!(read(v), attachment.clone());
        }
    }

    #[test]
    fn going_through_0_4_0_loses_only_interface_attributes(attachment in attachment()) {
        let down = read(attachment.to_json(Version::V0_4_0).unwrap());
        prop_assert_eq!((&down.ips, &down.routes, &down.dns), (&attachment.ips, &attachment.routes, &attachment.dns));
        for (after, before) in down.interfaces.iter().zip(&attachment.interfaces) {
            prop_assert_eq!((&after.name, &after.mac, &after.sandbox), (&before.name, &before.mac, &before.sandbox));
        }
    }

    #[test]
    fn every_conversion_is_stable_after_the_first(attachment in attachment()) {
        for version in Version::ALL {
            if let Ok(v) = attachment.to_json(*version) {
                prop_assert_eq!(read(v.clone()).to_json(*version).unwrap(), v);
            } else {
                prop_assert!(attachment.ips.is_empty());
            }
        }
    }

    #[test]
    fn a_mutilated_result_never_panics(text in "[\\[\\]{}:,\"a-z0-9./]{0,9}", at in 0..FULL.len()) {
        let broken = format!("{}{text}{}", &FULL[..at], &FULL[at..]);
        if let Ok(v) = serde_json::from_str::<Value>(&broken) {
            for version in Version::ALL {
                let _ = Attachment::from_json(&v, *version);
            }
        }
    }
}
