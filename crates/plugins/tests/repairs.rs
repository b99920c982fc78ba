//! CHECK and repair of host-device, tap and vrf.

#![allow(clippy::unwrap_used)] // A test that cannot go on says so.

mod test_pod;

use podwire_cni_plugin::{Command, Finding, Plugin, Registry, Request};
use podwire_kernel::{Host, Netns};
use podwire_plugins::host_device::HostDevice;
use podwire_plugins::tap::Tap;
use podwire_plugins::vrf::Vrf;
use serde_json::{json, Value};
use test_pod::{run, with_pod, Pod};

const ADDRESSES: &str = r#"[{"interface": 0, "address": "10.5.0.2/24", "gateway": "10.5.0.1"},
    {"interface": 0, "address": "fd05::2/64", "gateway": "fd05::1"}]"#;

/// The findings of a plugin in `pod`.
fn findings<'p>(pod: &Pod, plugin: &dyn Plugin, config: &Value) -> Vec<Finding<'p>> {
    let req = Request::new(Command::Check, &pod.source("eth0"), config.clone(), Registry::none()).unwrap();
    plugin.inspect(&req).unwrap()
}

/// Damages the pod, checks that the damage is found, repairs it, and checks that nothing is found afterwards.
fn assert_repaired(pod: &Pod, plugin: &dyn Plugin, config: &Value, damage: &str, finding: &str) {
    assert!(findings(pod, plugin, config).is_empty(), "before {damage}: {:?}", findings(pod, plugin, config));
    for line in damage.split("; ") {
        match line.strip_prefix("node ") {
            Some(line) => drop(run(line)),
            None => drop(pod.run(line)),
        }
    }
    let found = findings(pod, plugin, config);
    assert!(found.iter().any(|one| one.to_string().contains(finding)), "{damage}: {found:?}");
    for finding in found {
        let text = finding.to_string();
        finding.repair().unwrap_or_else(|error| panic!("{damage}: {text}: {error}"));
    }
    let left = findings(pod, plugin, config);
    assert!(left.is_empty(), "{damage}: {left:?}");
}

/// Runs ADD. Returns the config with a recorded result that has addresses and routes, which a repair has added.
fn attach(pod: &Pod, plugin: &dyn Plugin, mut config: Value) -> Value {
    config["cniVersion"] = json!("1.1.0");
    config["name"] = json!("net");
    let mut result = pod.call(plugin, Command::Add, "eth0", &config).unwrap();
    result["ips"] = serde_json::from_str(ADDRESSES).unwrap();
    result["routes"] =
        json!([{"dst": "198.51.100.0/24", "gw": "10.5.0.1"}, {"dst": "2001:db8::/32", "gw": "fd05::1"}]);
    config["prevResult"] = result;
    let found = findings(pod, plugin, &config);
    assert_eq!(found.len(), 4, "{found:?}");
    found.into_iter().for_each(|finding| finding.repair().unwrap());
    config
}

#[test]
fn a_host_device_is_repaired() {
    with_pod(|pod| {
        run("ip link add lent0 type veth peer name lent1");
        run("ip link set lent1 up");
        let config = attach(pod, &HostDevice, json!({"type": "host-device", "device": "lent0"}));
        let home = Netns::current().unwrap();
        for (damage, finding) in [
            ("ip link set eth0 down", "eth0 is down"),
            ("ip address flush dev eth0", "lacks address"),
            ("ip route delete 198.51.100.0/24", "198.51.100.0/24"),
            ("ip link set eth0 address 02:00:00:00:00:99", "02:00:00:00:00:99"),
            ("ip link set eth0 down; ip link set eth0 name wan", "the device is called wan"),
            ("ip link set dev eth0 alias ", "lost its alias"),
        ] {
            assert_repaired(pod, &HostDevice, &config, damage, finding);
        }
        // The device was moved back to the node.
        let mut inside = Host::within(Netns::open(&pod.netns).unwrap()).unwrap();
        let device = inside.get_link("eth0").unwrap();
        inside.move_link(&device, &home, "lent0", "").unwrap();
        let found = findings(pod, &HostDevice, &config);
        assert!(found[0].to_string().contains("the device lent0 is on the node"), "{found:?}");
        found.into_iter().for_each(|finding| finding.repair().unwrap());
        assert!(findings(pod, &HostDevice, &config).is_empty());
        pod.call(&HostDevice, Command::Del, "eth0", &config).unwrap();
        run("ip link show lent0");
        run("ip link delete lent0");
        let found = findings(pod, &HostDevice, &config);
        assert!(!found[0].is_repairable(), "{found:?}");
    });
}

#[test]
fn a_tap_device_is_repaired() {
    with_pod(|pod| {
        pod.run("ip link add br0 type bridge");
        let config = json!({"type": "tap", "mtu": 1400, "owner": 1234, "multiQueue": true, "bridge": "br0"});
        let config = attach(pod, &Tap, config);
        for (damage, finding) in [
            ("ip link set eth0 down", "eth0 is down"),
            ("ip address flush dev eth0", "lacks address"),
            ("ip route delete 198.51.100.0/24", "198.51.100.0/24"),
            ("ip link set eth0 address 02:00:00:00:00:99", "02:00:00:00:00:99"),
            ("ip link set eth0 mtu 1300", "MTU is 1300"),
            ("ip link set eth0 nomaster", "not a port of bridge br0"),
            ("ip link delete eth0", "no interface eth0"),
        ] {
            assert_repaired(pod, &Tap, &config, damage, finding);
        }
        pod.run("ip link delete eth0");
        pod.run("ip tuntap add mode tap name eth0");
        let found = findings(pod, &Tap, &config);
        let not_repairable =
            found.iter().filter(|one| !one.is_repairable()).map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            not_repairable,
            ["TAP device eth0: its owner is unset, not 1234", "TAP device eth0: it has one queue"]
        );
    });
}

#[test]
fn a_vrf_is_repaired() {
    with_pod(|pod| {
        // Kernels without VRFs are left out; the suite `devices` says so.
        if !podwire_kernel::vrf::is_supported().unwrap() {
            assert!(
                std::env::var_os("PODWIRE_REQUIRE_DRIVERS").is_none(),
                "this kernel was said to have VRFs"
            );
            return;
        }
        let (_, mut prev) = pod.connect("net", "eth0");
        for line in [
            // The previous plugin owns the addresses; Podwire's plugins keep them when a link goes down.
            "sysctl -qw net.ipv6.conf.eth0.keep_addr_on_down=1",
            "ip address add 10.5.0.2/24 dev eth0",
            "ip address add fd05::2/64 dev eth0 nodad",
            "ip route add 198.51.100.0/24 via 10.5.0.1",
            "ip route add 2001:db8::/32 via fd05::1",
        ] {
            pod.run(line);
        }
        prev["routes"] =
            json!([{"dst": "198.51.100.0/24", "gw": "10.5.0.1"}, {"dst": "2001:db8::/32", "gw": "fd05::1"}]);
        let config = json!({"cniVersion": "1.1.0", "name": "net", "type": "vrf", "vrfname": "red", "prevResult": prev});
        pod.call(&Vrf, Command::Add, "eth0", &config).unwrap();
        for (damage, finding) in [
            ("ip link set eth0 nomaster", "eth0 associated to vrf red"),
            ("ip link set red down", "red is down"),
            ("ip route delete 198.51.100.0/24 table 1", "198.51.100.0/24 is missing in table 1"),
            ("ip -6 route delete 2001:db8::/32 table 1", "2001:db8::/32 is missing in table 1"),
            ("ip link delete red", "no VRF red"),
        ] {
            assert_repaired(pod, &Vrf, &config, damage, finding);
        }
        assert!(pod.run("ip address show eth0").contains("fd05::2/64"));
    });
}
