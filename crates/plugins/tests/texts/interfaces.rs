//! Texts of the plugins that create an interface. `up0` is a link of the node with the MTU 1500; it is no bridge.

use serde_json::{json, Value};

use crate::test_pod::{run, with_pod};
use crate::{add, check, compare};

const NO_IPAM_RESULT: &str = "IPAM plugin returned missing IP config";

fn create_uplink() {
    run("ip link add up0 mtu 1500 type veth peer name up1");
    run("ip link set up1 up");
    run("ip link set up0 up");
}

#[test]
fn of_bridge() {
    let bridge = |config: Value, text: &str| add("bridge", config, text);
    let trunk = |trunk: Value, text: &str| add("bridge", json!({"vlanTrunk": [trunk]}), text);
    with_pod(|pod| {
        create_uplink();
        run("ip link add br0 type bridge");
        run("ip address add 10.9.0.1/24 dev br0");
        compare(
            pod,
            vec![
                bridge(
                    json!({"hairpinMode": true, "promiscMode": true}),
                    "cannot set hairpin mode and promiscuous mode at the same time",
                ),
                bridge(
                    json!({"disableContainerInterface": true, "ipam": {"type": "one"}}),
                    "cannot use IPAM when DisableContainerInterface flag is set",
                ),
                bridge(json!({"vlan": 4095}), "invalid VLAN ID 4095 (must be between 0 and 4094)"),
                bridge(json!({"vlan": -1}), "invalid VLAN ID -1 (must be between 0 and 4094)"),
                trunk(json!({"minID": 0, "maxID": 5}), "incorrect trunk minID parameter"),
                trunk(json!({"minID": 5, "maxID": 4095}), "incorrect trunk maxID parameter"),
                trunk(json!({"minID": 5, "maxID": 4}), "minID is greater than maxID in trunk parameter"),
                trunk(
                    json!({"maxID": 4}),
                    "minID and maxID should be configured simultaneously, minID is missing",
                ),
                trunk(
                    json!({"minID": 4}),
                    "minID and maxID should be configured simultaneously, maxID is missing",
                ),
                trunk(json!({"id": 4095}), "incorrect trunk id parameter"),
                bridge(json!({"ipMasqBackend": "x", "ipMasq": true}), "unknown ipmasq backend \"x\""),
                bridge(
                    json!({"bridge": "up0"}),
                    "failed to create bridge \"up0\": \"up0\" already exists but is not a bridge",
                ),
                bridge(json!({"bridge": "br1", "ipam": {"type": "none"}}), NO_IPAM_RESULT),
                bridge(
                    json!({"bridge": "br0", "isGateway": true, "ipam": {"type": "one"}}),
                    "failed to set bridge addr: \"br0\" already has an IP address different from 10.1.0.1/24",
                ),
                check("bridge", json!({}), "Required prevResult missing"),
            ],
        );
    });
}

#[test]
fn of_the_others() {
    let one = json!({"type": "one"});
    with_pod(|pod| {
        create_uplink();
        compare(
            pod,
            vec![
                add("ptp", json!({"ipam": {"type": "none"}}), NO_IPAM_RESULT),
                check("ptp", json!({"ipam": one}), "ptp: Required prevResult missing"),
                add("dummy", json!({}), "dummy interface requires an IPAM configuration"),
                check("dummy", json!({"ipam": one}), "dummy: Required prevResult missing"),
                add(
                    "tap",
                    json!({"mac": "x"}),
                    "invalid args x for MAC addr: address x: invalid MAC address",
                ),
                check("tap", json!({}), "Required prevResult missing"),
            ],
        );
    });
}

#[test]
fn of_subinterfaces() {
    let field = "\"master\" field is required. It specifies the host interface name to create the VLAN for";
    let vlan = |more: Value, text: &str| add("vlan", with_master(more), text);
    let ipvlan = |config: Value, text: &str| add("ipvlan", config, text);
    let (one, mtu) = (json!({"type": "one"}), |mtu: i32| json!({ "mtu": mtu }));
    let two = json!({"interfaces": [{"name": "a"}, {"name": "b"}]});
    with_pod(|pod| {
        create_uplink();
        compare(
            pod,
            vec![
                add("vlan", json!({}), field),
                vlan(json!({"vlanId": -1}), "invalid VLAN ID -1 (must be between 0 and 4095 inclusive)"),
                vlan(json!({"vlanId": 4095}), "invalid VLAN ID 4095 (must be between 0 and 4095 inclusive)"),
                vlan(mtu(1600), "invalid MTU 1600, must be [0, master MTU(1500)]"),
                vlan(mtu(-100), "invalid MTU -100, must be [0, master MTU(1500)]"),
                add("vlan", json!({"master": "nope"}), "Link not found"),
                add("vlan", json!({"master": "nope", "linkInContainer": true}), "Link not found"),
                check("vlan", json!({"master": "up0"}), "vlan: Required prevResult missing"),
                add("macvlan", with_master(mtu(1600)), "invalid MTU 1600, must be [0, master MTU(1500)]"),
                add("macvlan", with_master(mtu(-100)), "invalid MTU -100, must be [0, master MTU(1500)]"),
                add("macvlan", with_master(json!({"mode": "x"})), "unknown macvlan mode: \"x\""),
                add(
                    "macvlan",
                    with_master(json!({"mac": "02:00"})),
                    "invalid args 02:00 for MAC addr: address 02:00: invalid MAC address",
                ),
                add("macvlan", json!({}), "no default route interface found"),
                add("macvlan", json!({"master": "nope"}), "Link not found"),
                add("macvlan", json!({"master": "nope", "linkInContainer": true}), "Link not found"),
                check("macvlan", json!({"master": "up0"}), "required prevResult missing"),
                ipvlan(with_master(json!({"mode": "x"})), "unknown ipvlan mode: \"x\""),
                ipvlan(json!({"ipam": one}), "no default route interface found"),
                ipvlan(
                    json!({"ipam": one, "master": "nope"}),
                    "failed to lookup master \"nope\": Link not found",
                ),
                ipvlan(
                    json!({"ipam": one, "prevResult": two}),
                    "chained master failure. PrevResult lacks a single named interface",
                ),
                check("ipvlan", json!({"ipam": one}), "Required prevResult missing"),
            ],
        );
    });
}

fn with_master(mut config: Value) -> Value {
    config["master"] = json!("up0");
    config
}

#[test]
fn of_host_device() {
    let device = |config: Value, text: &str| add("host-device", config, text);
    with_pod(|pod| {
        compare(
            pod,
            vec![
                device(json!({}), "specify either \"device\", \"hwaddr\", \"kernelpath\" or \"pciBusID\""),
                device(json!({"device": "nope"}), "failed to find host device: Link not found"),
                device(
                    json!({"hwaddr": "02:00"}),
                    "failed to find host device: failed to parse MAC address \"02:00\": address 02:00: invalid MAC \
                     address",
                ),
                device(
                    json!({"hwaddr": "02:00:5e:10:00:01"}),
                    "failed to find host device: failed to find physical interface",
                ),
                device(
                    json!({"kernelpath": "/etc"}),
                    "failed to find host device: kernel device path \"/etc\" must be absolute and begin with \
                     /sys/devices/",
                ),
                check("host-device", json!({"device": "nope"}), "Required prevResult missing"),
            ],
        );
    });
}
