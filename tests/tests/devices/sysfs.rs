//! host-device by /sys: devices on the PCI and the auxiliary bus, and devices of DPDK. The node of a test has its own
//! sysfs tree.

use podwire_tests::{assert_same, Invocation, Node, Pod};
use serde_json::{json, Value};

use crate::host_device::{create_device, DEVICE};
use crate::{addresses, link, network, refusal, status, Families};

const CARD: &str = "0000:00:19.0";
const VIRTIO: &str = "0000:00:1a.0";
const DPDK: [(&str, &str); 3] =
    [("0000:00:1b.0", "vfio-pci"), ("0000:00:1b.1", "uio_pci_generic"), ("0000:00:1b.2", "igb_uio")];
const UNBOUND: &str = "0000:00:1c.0";
const FUNCTION: &str = "mlx5_core.sf.4";
const PATH: &str = "/sys/devices/pci0000:00/0000:00:19.0";

/// A node with a device for host-device, and a sysfs tree that has it under several ids.
fn node() -> Node {
    let node = Node::new();
    create_device(&node);
    node.sh(&format!(
        "mount -t tmpfs none /sys/bus; mount -t tmpfs none /sys/devices
         pci=/sys/bus/pci/devices; mkdir -p /sys/bus/pci/drivers $pci
         mkdir -p $pci/{CARD}/net/{DEVICE} $pci/{VIRTIO}/virtio2/net/{DEVICE} $pci/{UNBOUND} {PATH}/net/{DEVICE}
         mkdir -p /sys/bus/auxiliary/devices/{FUNCTION}/net/{DEVICE}
         ln -s ../../drivers/e1000e $pci/{CARD}/driver; ln -s ../../drivers/virtio-pci $pci/{VIRTIO}/driver"
    ));
    for (id, driver) in DPDK {
        node.sh(&format!(
            "mkdir /sys/bus/pci/devices/{id}; ln -s ../../drivers/{driver} /sys/bus/pci/devices/{id}/driver"
        ));
    }
    node
}

fn config(key: &str, value: &str) -> Value {
    let mut config = json!({"type": "host-device", "ipam": Families::Both.pool()});
    match key {
        "deviceID" => {
            config["capabilities"] = json!({"deviceID": true});
            config["runtimeConfig"] = json!({"deviceID": value});
        }
        key => config[key] = json!(value),
    }
    config
}

#[test]
fn a_device_is_found_by_its_place_in_the_machine() {
    let node = node();
    let pod = node.pod("blue");
    let before = node.state(&pod);
    for (key, value, pci) in [
        ("pciBusID", CARD, CARD),
        ("pciBusID", VIRTIO, VIRTIO),
        ("deviceID", CARD, CARD),
        ("deviceID", FUNCTION, ""),
        ("kernelpath", PATH, ""),
    ] {
        let what = format!("{key} {value}");
        let chain = network("bus", &config(key, value));
        let result = chain.add(&node, &pod);
        assert_eq!(result["interfaces"][0]["pciID"].as_str().unwrap_or_default(), pci, "{what}");
        assert_eq!(link(&node, &pod, "eth0")["ifalias"], DEVICE, "{what}");
        assert!(node.pings(Some(&pod), "10.5.0.1") && node.pings(Some(&pod), "fd05::1"), "{what}");
        chain.check(&node, &pod, &result).unwrap_or_else(|failed| panic!("{what}: {}", failed.stdout));
        chain.del(&node, &pod, None);
        assert_same(&before, &node.state(&pod), &what);
    }
}

#[test]
fn the_runtimes_choice_takes_precedence_over_the_config() {
    let node = node();
    let pod = node.pod("blue");
    let mut config = config("deviceID", FUNCTION);
    config["pciBusID"] = json!(UNBOUND);
    config["device"] = json!("nowhere");
    let chain = network("chosen", &config);
    let result = chain.add(&node, &pod);
    chain.del(&node, &pod, Some(&result));
    assert!(node.can(&format!("ip link show {DEVICE}")));

    // Without a device in its config, the network is valid; ADD then needs the runtime's choice.
    let open = network("open", &json!({"type": "host-device", "capabilities": {"deviceID": true}}));
    assert_eq!(status(&node, &open).status, 0, "{}", status(&node, &open).stdout);
    open.try_add(&node, &pod).expect_err("no device was chosen");
}

#[test]
fn a_device_that_dpdk_has_stays_and_its_pod_gets_addresses_only() {
    let node = node();
    for (id, driver) in DPDK {
        for key in ["pciBusID", "deviceID"] {
            let pod = node.pod("blue");
            let before = node.state(&pod);
            let chain = network("dpdk", &config(key, id));
            let result = chain.add(&node, &pod);
            assert_eq!(addresses(&result).len(), 2, "{driver}: {result}");
            assert!(result["interfaces"].as_array().is_none_or(Vec::is_empty), "{driver}: {result}");
            let inside = node.inside(&pod);
            assert!(before.contains(&inside), "{driver}: nothing changed in the pod");
            chain.check(&node, &pod, &result).unwrap_or_else(|failed| panic!("{driver}: {}", failed.stdout));
            assert_eq!(status(&node, &chain).status, 0);
            chain.del(&node, &pod, Some(&result));
            chain.del(&node, &Pod { netns: String::new(), ..pod.clone() }, None);
            assert_same(&before, &node.state(&pod), driver);
            node.remove(&pod);
        }
    }
    // A DPDK device needs no IPAM plugin either.
    let pod = node.pod("bare");
    let bare = network("bare", &json!({"type": "host-device", "pciBusID": DPDK[0].0}));
    let result = bare.add(&node, &pod);
    assert!(result["ips"].as_array().is_none_or(Vec::is_empty), "{result}");
    bare.del(&node, &pod, Some(&result));
}

#[test]
fn a_device_without_a_driver_or_without_a_place_is_refused() {
    let node = node();
    let pod = node.pod("blue");
    let before = node.state(&pod);
    for (key, value, text) in [
        ("pciBusID", UNBOUND, "failed to find host device: device 0000:00:1c.0 has no driver"),
        ("deviceID", "mlx5_core.sf.9", "runtimeConfig.deviceID: device \"mlx5_core.sf.9\" is neither"),
    ] {
        let (_, said) = refusal(&node, &pod, &config(key, value));
        assert!(said.starts_with(text), "{said}");
    }
    let away = network("away", &config("pciBusID", UNBOUND));
    assert_eq!(status(&node, &away).error().0, 50);
    assert_same(&before, &node.state(&pod), "refusals");
    let lost = network("lost", &config("pciBusID", "0000:00:1f.0"));
    assert_eq!(Invocation::new(&node, &lost.path, "DEL", &pod, &lost.config(0)).run().status, 0);
}
