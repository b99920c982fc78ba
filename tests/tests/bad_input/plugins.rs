//! The configs of single plugin types.

use podwire_tests::{ours, Chain};
use serde_json::json;

use crate::{assert_refused, check, good, Scene, CONFIG, ENV, INTERNAL, IO, KERNEL, PORT_TAKEN, VERSION};

#[test]
#[rustfmt::skip] // a table
fn configs_of_bridge_that_make_no_sense_are_refused() {
    check(&[
        ("bridge", "a name of 16 bytes", (|r| r.set("bridge", json!("br01234567890123")), CONFIG, &["bridge:", "too long"])),
        ("bridge", "a name with a slash", (|r| r.set("bridge", json!("../br0")), CONFIG, &["bridge:", "contains /"])),
        ("bridge", "a name that is a number", (|r| r.set("bridge", json!(5)), CONFIG, &["bridge:", "string"])),
        ("bridge", "a name with a NUL byte", (|r| r.set("bridge", json!("br\0")), CONFIG, &["bridge:"])),
        ("bridge", "a name that is no bridge's", (|r| r.set("bridge", json!("lo")), CONFIG, &["lo", "already exists but is not a bridge"])),
        ("bridge", "hairpin and promiscuous", (|r| r.set("hairpinMode", json!(true)).set("promiscMode", json!(true)), CONFIG, &["hairpinMode", "promiscMode"])),
        ("bridge", "VLAN 4095", (|r| r.set("vlan", json!(4095)), CONFIG, &["vlan", "4095", "4094"])),
        ("bridge", "VLAN -1", (|r| r.set("vlan", json!(-1)), CONFIG, &["vlan", "-1"])),
        ("bridge", "a VLAN in words", (|r| r.set("vlan", json!("ten")), CONFIG, &["vlan", "ten"])),
        ("bridge", "a trunk of nothing", (|r| r.set("vlanTrunk", json!([{}])), CONFIG, &["vlanTrunk[0]", "minID"])),
        ("bridge", "a trunk backwards", (|r| r.set("vlanTrunk", json!([{"id": 5}, {"minID": 9, "maxID": 8}])), CONFIG, &["vlanTrunk[1]", "minID is greater than maxID"])),
        ("bridge", "a trunk to 4095", (|r| r.set("vlanTrunk", json!([{"minID": 1, "maxID": 4095}])), CONFIG, &["vlanTrunk[0]", "4095"])),
        ("bridge", "a trunk that is a number", (|r| r.set("vlanTrunk", json!(5)), CONFIG, &["vlanTrunk"])),
        ("bridge", "VLANs on a bridge that filters none", (|r| r.set("vlan", json!(10)), CONFIG, &["vlan", "br0"])),
        ("bridge", "an MTU below zero", (|r| r.set("mtu", json!(-1)), CONFIG, &["mtu", "-1"])),
        ("bridge", "an MTU beyond all", (|r| r.set("mtu", json!(1u64 << 40)), CONFIG, &["mtu", "1099511627776"])),
        ("bridge", "an MTU that the kernel does not take", (|r| r.set("mtu", json!(u32::MAX)), CONFIG, &["mtu", "4294967295"])),
        ("bridge", "an MTU in words", (|r| r.set("mtu", json!("large")), CONFIG, &["mtu", "large"])),
        ("bridge", "half an MTU", (|r| r.set("mtu", json!(1400.5)), CONFIG, &["mtu", "1400.5"])),
        ("bridge", "a switch that is neither", (|r| r.set("isGateway", json!("maybe")), CONFIG, &["isGateway", "maybe"])),
        ("bridge", "an unknown backend", (|r| r.set("ipMasqBackend", json!("ebtables")), CONFIG, &["ipMasqBackend", "ebtables"])),
        ("bridge", "a wrong MAC", (|r| r.env("CNI_ARGS", "MAC=02:00"), CONFIG, &["mac:", "02:00"])),
        ("bridge", "a MAC of a group", (|r| r.env("CNI_ARGS", "MAC=01:00:5e:00:00:01"), CONFIG, &["mac:", "group"])),
        ("bridge", "a MAC of zeros", (|r| r.set("runtimeConfig", json!({"mac": "00:00:00:00:00:00"})), CONFIG, &["mac:"])),
        ("bridge", "a MAC that is a number", (|r| r.set("runtimeConfig", json!({"mac": 5})), CONFIG, &["runtimeConfig.mac"])),
        ("bridge", "a runtimeConfig that is a list", (|r| r.set("runtimeConfig", json!([])), CONFIG, &["runtimeConfig"])),
        ("bridge", "addresses for an interface that is off", (|r| r.set("disableContainerInterface", json!(true)), CONFIG, &["ipam", "disableContainerInterface"])),
        ("bridge", "a gateway that the bridge is not", (|r| r.set("ipam.subnet", json!("10.99.0.0/24")), CONFIG, &["br0", "10.99.0.1/24"])),
        ("bridge", "an interface that is there", (|r| r.env("CNI_CONTAINERID", "other").env("CNI_NETNS", "/run/netns/blue"), INTERNAL, &["eth0", "already exists"])),
        ("bridge", "an attachment that is there", (|r| r.env("CNI_CONTAINERID", "blue").env("CNI_NETNS", "/run/netns/blue"), INTERNAL, &["eth0", "already exists"])),
        ("bridge", "ipam that is a number", (|r| r.set("ipam", json!(5)), CONFIG, &["ipam"])),
        ("bridge", "an ipam type that is a number", (|r| r.set("ipam.type", json!(5)), CONFIG, &["ipam.type"])),
        ("bridge", "an unknown ipam type", (|r| r.set("ipam.type", json!("nowhere")), CONFIG, &["nowhere", "path"])),
        ("bridge", "an ipam type that climbs", (|r| r.set("ipam.type", json!("../cni/static")), CONFIG, &["../cni/static"])),
        ("bridge", "itself as ipam", (|r| r.set("ipam.type", json!("bridge")), CONFIG, &["ipam.type", "bridge"])),
        ("bridge", "a neighbour as ipam", (|r| r.set("ipam.type", json!("ptp")), CONFIG, &["ipam.type", "ptp"])),
        ("bridge", "name servers that are a text", (|r| r.set("dns", json!("1.1.1.1")), CONFIG, &["dns"])),
    ]);
}

#[test]
#[rustfmt::skip] // a table
fn configs_of_ptp_and_loopback_that_make_no_sense_are_refused() {
    check(&[
        ("ptp", "no ipam", (|r| r.without("ipam"), CONFIG, &["ipam.type"])),
        ("ptp", "an empty ipam type", (|r| r.set("ipam.type", json!("")), CONFIG, &["ipam.type"])),
        ("ptp", "itself as ipam", (|r| r.set("ipam.type", json!("ptp")), CONFIG, &["ipam.type", "ptp"])),
        ("ptp", "a negative MTU", (|r| r.set("mtu", json!(-5)), CONFIG, &["mtu", "-5"])),
        ("ptp", "an MTU that the kernel does not take", (|r| r.set("mtu", json!(67)), CONFIG, &["mtu", "67"])),
        ("ptp", "an unknown backend", (|r| r.set("ipMasqBackend", json!(true)), CONFIG, &["ipMasqBackend"])),
        ("ptp", "an address without gateway", (|r| r.set("ipam", json!({"type": "static", "addresses": [{"address": "10.9.0.5/24"}]})), CONFIG, &["10.9.0.5/24", "gateway"])),
        ("ptp", "an address that is none", (|r| r.set("ipam", json!({"type": "static", "addresses": [{"address": "10.9.0.5"}]})), CONFIG, &["ipam.addresses[0].address", "10.9.0.5"])),
        ("ptp", "no address at all", (|r| r.set("ipam", json!({"type": "static"})), INTERNAL, &["static", "missing IP config"])),
        ("ptp", "an interface that is there", (|r| r.env("CNI_CONTAINERID", "other").env("CNI_NETNS", "/run/netns/blue"), INTERNAL, &["eth0", "already exists"])),
        ("ptp", "a route that leads nowhere", (|r| r.set("ipam.routes", json!([{"dst": "198.51.100.0/24", "gw": "203.0.113.1"}])), KERNEL, &["198.51.100.0/24"])),
    ]);
}

#[test]
#[rustfmt::skip] // a table
fn configs_of_interfaces_that_hang_on_another_and_make_no_sense_are_refused() {
    check(&[
        ("macvlan", "an unknown mode", (|r| r.set("mode", json!("source")), CONFIG, &["mode:", "unknown macvlan mode", "source"])),
        ("macvlan", "a mode that is a number", (|r| r.set("mode", json!(4)), CONFIG, &["mode"])),
        ("macvlan", "a master that is not there", (|r| r.set("master", json!("nowhere")), CONFIG, &["Link not found", "\"nowhere\" on the node"])),
        ("macvlan", "a master in the pod that is not there", (|r| r.set("linkInContainer", json!(true)), CONFIG, &["Link not found", "\"uplink\" in the pod"])),
        ("macvlan", "a master's name of 16 bytes", (|r| r.set("master", json!("wire012345678901")), CONFIG, &["master:", "too long"])),
        ("macvlan", "a master that is a number", (|r| r.set("master", json!(5)), CONFIG, &["master"])),
        ("macvlan", "no master and no default route", (|r| r.without("master"), CONFIG, &["master:", "no default route interface found"])),
        ("macvlan", "an MTU beyond the master's", (|r| r.set("mtu", json!(1501)), CONFIG, &["mtu:", "invalid MTU 1501, must be [0, master MTU(1500)]"])),
        ("macvlan", "an MTU below zero", (|r| r.set("mtu", json!(-1)), CONFIG, &["mtu", "-1"])),
        ("macvlan", "an MTU that the kernel does not take", (|r| r.set("mtu", json!(67)), CONFIG, &["mtu", "67"])),
        ("macvlan", "a wrong MAC", (|r| r.set("mac", json!("02:00")), CONFIG, &["mac:", "02:00"])),
        ("macvlan", "a MAC of a group", (|r| r.env("CNI_ARGS", "MAC=01:00:5e:00:00:01"), CONFIG, &["mac:", "group"])),
        ("macvlan", "a MAC of the runtime that is a number", (|r| r.set("runtimeConfig", json!({"mac": 5})), CONFIG, &["runtimeConfig.mac"])),
        ("macvlan", "a negative queue", (|r| r.set("bcqueuelen", json!(-1)), CONFIG, &["bcqueuelen", "-1"])),
        ("macvlan", "an interface that is there", (|r| r.env("CNI_NETNS", "/run/netns/blue"), INTERNAL, &["failed to create macvlan", "eth0", "already exists"])),
        ("macvlan", "ipam that is a number", (|r| r.set("ipam", json!(5)), CONFIG, &["ipam"])),
        ("macvlan", "an ipam type that is a number", (|r| r.set("ipam.type", json!(5)), CONFIG, &["ipam.type"])),
        ("macvlan", "itself as ipam", (|r| r.set("ipam.type", json!("macvlan")), CONFIG, &["ipam.type", "macvlan"])),
        ("macvlan", "a neighbour as ipam", (|r| r.set("ipam.type", json!("ptp")), CONFIG, &["ipam.type", "ptp"])),
        ("macvlan", "an unknown ipam type", (|r| r.set("ipam.type", json!("nowhere")), CONFIG, &["nowhere", "path"])),
        ("macvlan", "a route that leads nowhere", (|r| r.set("ipam.routes", json!([{"dst": "198.51.100.0/24", "gw": "203.0.113.1"}])), KERNEL, &["198.51.100.0/24"])),
        ("ipvlan", "an unknown mode", (|r| r.set("mode", json!("L4")), CONFIG, &["mode:", "unknown ipvlan mode", "L4"])),
        ("ipvlan", "an unknown flag", (|r| r.set("flag", json!("open")), CONFIG, &["flag:", "open"])),
        ("ipvlan", "a master that is not there", (|r| r.set("master", json!("nowhere")), CONFIG, &["failed to lookup master \"nowhere\""])),
        ("ipvlan", "an MTU beyond the master's", (|r| r.set("mtu", json!(1501)), CONFIG, &["mtu:", "1501", "1500"])),
        ("ipvlan", "no ipam and no result", (|r| r.without("ipam"), CONFIG, &["ipam.type"])),
        ("ipvlan", "no master, and a result with many interfaces", (|r| r.without("master").set("prevResult", json!({"cniVersion": "1.0.0", "interfaces": [{"name": "a"}, {"name": "b"}]})), CONFIG, &["chained master failure", "master"])),
        ("vlan", "no master", (|r| r.without("master"), CONFIG, &["\"master\" field is required"])),
        ("vlan", "VLAN 4095", (|r| r.set("vlanId", json!(4095)), CONFIG, &["vlanId:", "4095", "4094"])),
        ("vlan", "VLAN -1", (|r| r.set("vlanId", json!(-1)), CONFIG, &["vlanId:", "-1"])),
        ("vlan", "a VLAN in words", (|r| r.set("vlanId", json!("five")), CONFIG, &["vlanId", "five"])),
        ("vlan", "a master that is not there", (|r| r.set("master", json!("nowhere")), CONFIG, &["Link not found", "\"nowhere\" on the node"])),
        ("vlan", "an MTU beyond the master's", (|r| r.set("mtu", json!(1501)), CONFIG, &["mtu:", "1501", "1500"])),
        ("vlan", "ipam that is a text", (|r| r.set("ipam", json!("host-local")), CONFIG, &["ipam"])),
        ("dummy", "no ipam", (|r| r.without("ipam"), CONFIG, &["dummy interface requires an IPAM configuration", "ipam.type"])),
        ("dummy", "a wrong MAC", (|r| r.set("mac", json!("none")), CONFIG, &["mac:", "none"])),
        ("dummy", "an MTU beyond all", (|r| r.set("mtu", json!(70_000)), CONFIG, &["mtu:", "70000"])),
    ]);
}

#[test]
#[rustfmt::skip] // a table
fn ports_that_cannot_be_mapped_are_refused() {
    check(&[
        ("portmap", "no result", (|r| r.without("prevResult"), CONFIG, &["prevResult"])),
        ("portmap", "port 0", (|r| r.set("runtimeConfig.portMappings", json!([{"hostPort": 0, "containerPort": 80}])), CONFIG, &["runtimeConfig.portMappings[0].hostPort", "0"])),
        ("portmap", "port 65536", (|r| r.set("runtimeConfig.portMappings", json!([{"hostPort": 80, "containerPort": 65536}])), CONFIG, &["portMappings[0].containerPort", "65536"])),
        ("portmap", "port -1", (|r| r.set("runtimeConfig.portMappings", json!([{"hostPort": -1, "containerPort": 80}])), CONFIG, &["portMappings[0].hostPort", "-1"])),
        ("portmap", "a port in words", (|r| r.set("runtimeConfig.portMappings", json!([{"hostPort": "http", "containerPort": 80}])), CONFIG, &["portMappings[0].hostPort", "http"])),
        ("portmap", "no port of the pod", (|r| r.set("runtimeConfig.portMappings", json!([{"hostPort": 80}])), CONFIG, &["portMappings[0]", "containerPort"])),
        ("portmap", "an unknown protocol", (|r| r.set("runtimeConfig.portMappings", json!([{"hostPort": 80, "containerPort": 80, "protocol": "icmp"}])), CONFIG, &["portMappings[0].protocol", "icmp"])),
        ("portmap", "a host address that is none", (|r| r.set("runtimeConfig.portMappings", json!([{"hostPort": 80, "containerPort": 80, "hostIP": "all"}])), CONFIG, &["portMappings[0].hostIP", "all"])),
        ("portmap", "a port twice", (|r| r.set("runtimeConfig.portMappings", json!([{"hostPort": 80, "containerPort": 80}, {"hostPort": 80, "containerPort": 81}])), CONFIG, &["portMappings[1]", "80/tcp", "twice"])),
        ("portmap", "a port for all addresses, and for all of IPv4", (|r| r.set("runtimeConfig.portMappings", json!([{"hostPort": 80, "containerPort": 80}, {"hostPort": 80, "containerPort": 81, "hostIP": "0.0.0.0"}])), CONFIG, &["portMappings[1]", "80/tcp", "twice"])),
        ("portmap", "ports that are no list", (|r| r.set("runtimeConfig.portMappings", json!({"hostPort": 80})), CONFIG, &["runtimeConfig.portMappings"])),
        ("portmap", "an unknown backend", (|r| r.set("backend", json!("ebtables")), CONFIG, &["backend", "ebtables"])),
        ("portmap", "a backend that is a number", (|r| r.set("backend", json!(5)), CONFIG, &["backend"])),
        ("portmap", "bit 32", (|r| r.set("markMasqBit", json!(32)), CONFIG, &["markMasqBit", "32"])),
        ("portmap", "bit -1", (|r| r.set("markMasqBit", json!(-1)), CONFIG, &["markMasqBit", "-1"])),
        ("portmap", "two ways to mark", (|r| r.set("markMasqBit", json!(5)).set("externalSetMarkChain", json!("MARK")), CONFIG, &["externalSetMarkChain", "markMasqBit"])),
        ("portmap", "conditions that are not understood", (|r| r.set("conditionsV4", json!(["-m", "physdev"])), CONFIG, &["conditionsV4", "-m physdev"])),
        ("portmap", "half a condition", (|r| r.set("conditionsV6", json!(["!", "-d"])), CONFIG, &["conditionsV6", "! -d"])),
        ("portmap", "a condition of the other family", (|r| r.set("conditionsV4", json!(["-d", "fd00::/64"])), CONFIG, &["conditionsV4", "fd00::/64"])),
        ("portmap", "conditions that are a text", (|r| r.set("conditionsV4", json!("-d 10.0.0.0/8")), CONFIG, &["conditionsV4"])),
        ("portmap", "a switch that is neither", (|r| r.set("snat", json!("maybe")), CONFIG, &["snat", "maybe"])),
    ]);
}

#[test]
fn a_port_in_use_is_refused_with_its_owner() {
    let scene = Scene::new();
    let other = scene.node.pod("other");
    let mut portmap = good("portmap");
    portmap["runtimeConfig"]["portMappings"] = json!([{"hostPort": 8080, "containerPort": 81}]);
    Chain::new(&ours(), "net", &[good("bridge"), portmap]).add(&scene.node, &other);
    let words = ["host port 8080/tcp is taken by net/other/eth0"];
    assert_refused(&scene, "portmap: a taken port", &scene.request("portmap"), PORT_TAKEN, &words);
}

#[test]
#[rustfmt::skip] // a table
fn limits_sysctls_and_rules_that_make_no_sense_are_refused() {
    check(&[
        ("bandwidth", "no result", (|r| r.without("prevResult"), CONFIG, &["prevResult"])),
        ("bandwidth", "a rate without burst", (|r| r.set("egressRate", json!(8000)), CONFIG, &["egressRate", "egressBurst"])),
        ("bandwidth", "a burst without rate", (|r| r.set("egressBurst", json!(8000)), CONFIG, &["egressBurst", "egressRate"])),
        ("bandwidth", "a negative rate", (|r| r.set("ingressRate", json!(-1)), CONFIG, &["ingressRate", "-1"])),
        ("bandwidth", "a rate of 7 bits", (|r| r.set("ingressRate", json!(7)), CONFIG, &["ingressRate", "7"])),
        ("bandwidth", "a rate in words", (|r| r.set("ingressRate", json!("10M")), CONFIG, &["ingressRate", "10M"])),
        ("bandwidth", "a burst beyond all", (|r| r.set("ingressBurst", json!(u64::MAX)), CONFIG, &["ingressBurst"])),
        ("bandwidth", "a rate beyond all numbers", (|r| r.set("ingressRate", json!(1e30)), CONFIG, &["ingressRate"])),
        ("bandwidth", "limits of the runtime that are none", (|r| r.without("ingressRate").without("ingressBurst").set("runtimeConfig", json!({"bandwidth": 5})), CONFIG, &["runtimeConfig.bandwidth"])),
        ("bandwidth", "an interface that is no veth", (|r| r.env("CNI_IFNAME", "lo"), CONFIG, &["lo"])),
        ("bandwidth", "an interface that is not there", (|r| r.env("CNI_IFNAME", "eth7"), KERNEL, &["eth7"])),
        ("bandwidth", "an old version", (|r| r.set("cniVersion", json!("0.2.0")), VERSION, &["incompatible CNI versions"])),
        ("tuning", "no result", (|r| r.without("prevResult"), CONFIG, &["prevResult"])),
        ("tuning", "a sysctl of the node", (|r| r.set("sysctl", json!({"kernel.panic": "1"})), CONFIG, &["kernel.panic"])),
        ("tuning", "a sysctl that climbs", (|r| r.set("sysctl", json!({"../kernel/panic": "1"})), CONFIG, &["../kernel/panic"])),
        ("tuning", "a sysctl that climbs from net", (|r| r.set("sysctl", json!({"net/../kernel/panic": "1"})), IO, &["net/kernel/panic"])),
        ("tuning", "a sysctl without a name", (|r| r.set("sysctl", json!({"net": "1"})), CONFIG, &["\"net\""])),
        ("tuning", "a sysctl that is not there", (|r| r.set("sysctl", json!({"net.core.somaxconn": "4000", "net.nowhere": "1"})), IO, &["net/nowhere"])),
        ("tuning", "a sysctl with a NUL byte", (|r| r.set("sysctl", json!({"net.a\0b": "1"})), CONFIG, &["net.a"])),
        ("tuning", "a sysctl twice", (|r| r.set("sysctl", json!({"net.core.somaxconn": "1", "net/core/somaxconn": "2"})), CONFIG, &["duplicated", "net/core/somaxconn"])),
        ("tuning", "a sysctl's value that the kernel does not take", (|r| r.set("sysctl", json!({"net.core.somaxconn": "many"})), IO, &["somaxconn", "many"])),
        ("tuning", "a sysctl's value that is a number", (|r| r.set("sysctl", json!({"net.core.somaxconn": 5})), CONFIG, &["sysctl.net.core.somaxconn"])),
        ("tuning", "sysctls that are a list", (|r| r.set("sysctl", json!(["net.core.somaxconn=1"])), CONFIG, &["sysctl"])),
        ("tuning", "a wrong MAC", (|r| r.set("mac", json!("02:00")), CONFIG, &["MAC", "02:00"])),
        ("tuning", "a MAC of a group", (|r| r.set("mac", json!("01:00:5e:00:00:01")), CONFIG, &["MAC", "group"])),
        ("tuning", "a negative MTU", (|r| r.set("mtu", json!(-1)), CONFIG, &["mtu", "-1"])),
        ("tuning", "an MTU that the kernel does not take", (|r| r.set("mtu", json!(70_000)), KERNEL, &["MTU", "70000"])),
        ("tuning", "a negative queue", (|r| r.set("txQLen", json!(-1)), CONFIG, &["txQLen", "-1"])),
        ("tuning", "a queue beyond all", (|r| r.set("txQLen", json!(1u64 << 40)), CONFIG, &["txQLen"])),
        ("tuning", "an unknown argument", (|r| r.env("CNI_ARGS", "FOO=1"), ENV, &["unknown args", "FOO=1"])),
        ("tuning", "an interface that is not there", (|r| r.env("CNI_IFNAME", "eth7"), KERNEL, &["eth7"])),
        ("tuning", "a folder with a NUL byte", (|r| r.set("dataDir", json!("/run/a\0b")), CONFIG, &["dataDir"])),
        ("tuning", "a folder that is a number", (|r| r.set("dataDir", json!(5)), CONFIG, &["dataDir"])),
        ("tuning", "a folder in a device", (|r| r.set("dataDir", json!("/dev/null")), IO, &["/dev/null"])),
        ("firewall", "no result", (|r| r.without("prevResult"), CONFIG, &["prevResult"])),
        ("firewall", "an unknown backend", (|r| r.set("backend", json!("pf")), CONFIG, &["backend", "pf"])),
        ("firewall", "an unknown policy", (|r| r.set("ingressPolicy", json!("closed")), CONFIG, &["ingressPolicy", "closed"])),
        ("firewall", "a policy that is a switch", (|r| r.set("ingressPolicy", json!(true)), CONFIG, &["ingressPolicy"])),
        ("firewall", "a policy without an interface", (|r| r.set("ingressPolicy", json!("isolated")).set("prevResult", json!({"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.5/24"}]})), CONFIG, &["ingressPolicy", "no interface"])),
        ("firewall", "a policy behind no bridge", (|r| r.set("ingressPolicy", json!("isolated")).set("prevResult", json!({"cniVersion": "1.0.0", "interfaces": [{"name": "cable0"}], "ips": [{"address": "10.1.0.5/24"}]})), CONFIG, &["ingressPolicy", "cable0", "not a bridge"])),
        ("firewall", "a chain's name that is too long", (|r| r.set("iptablesAdminChainName", json!("A".repeat(300))), CONFIG, &["iptablesAdminChainName"])),
        ("firewall", "a chain's name with a NUL byte", (|r| r.set("iptablesAdminChainName", json!("A\0B")), CONFIG, &["iptablesAdminChainName"])),
        ("firewall", "an old version", (|r| r.set("cniVersion", json!("0.3.1")), VERSION, &["incompatible CNI versions"])),
        ("sbr", "no result", (|r| r.without("prevResult"), CONFIG, &["prevResult"])),
        ("sbr", "a result without addresses", (|r| r.set("prevResult.ips", json!([])), CONFIG, &["No IP addresses supplied", "eth0"])),
        ("sbr", "an interface that is not there", (|r| r.env("CNI_IFNAME", "eth7").set("prevResult.interfaces", json!([])).set("prevResult.ips", json!([{"address": "10.7.0.9/24"}])), KERNEL, &["eth7"])),
        ("sbr", "a negative table", (|r| r.set("table", json!(-1)), CONFIG, &["table", "-1"])),
        ("sbr", "table 0", (|r| r.set("table", json!(0)), CONFIG, &["table", "0"])),
        ("sbr", "a table beyond all", (|r| r.set("table", json!(1u64 << 32)), CONFIG, &["table"])),
        ("sbr", "a gateway that is none", (|r| r.set("gateways", json!(["gw"])), CONFIG, &["gateway", "gw"])),
        ("sbr", "two gateways of a family", (|r| r.set("gateways", json!(["10.7.0.1", "10.7.0.2"])), CONFIG, &["gateways", "10.7.0.2"])),
        ("sbr", "a gateway that cannot be reached", (|r| r.set("gateways", json!(["203.0.113.1"])), KERNEL, &["203.0.113.1"])),
        ("host-device", "no device", (|r| r.without("device"), CONFIG, &["specify either", "device"])),
        ("host-device", "a device that is a number", (|r| r.set("device", json!(5)), CONFIG, &["device"])),
        ("host-device", "a device that is not there", (|r| r.set("device", json!("ens9")), INTERNAL, &["failed to find host device", "ens9"])),
        ("host-device", "a PCI address that is a path", (|r| r.without("device").set("pciBusID", json!("../../etc")), CONFIG, &["pciBusID", "../../etc"])),
        ("host-device", "a chosen device that is not there", (|r| r.set("runtimeConfig", json!({"deviceID": "0000:ff:1f.7"})), CONFIG, &["deviceID", "0000:ff:1f.7"])),
        ("tap", "a negative owner", (|r| r.set("owner", json!(-5)), CONFIG, &["owner", "-5"])),
        ("tap", "a group's hardware address", (|r| r.set("mac", json!("01:00:5e:00:00:01")), CONFIG, &["mac", "01:00:5e:00:00:01"])),
        ("tap", "an MTU beyond all", (|r| r.set("mtu", json!(70_000)), CONFIG, &["mtu", "70000"])),
        ("tap", "a bridge that the pod has not", (|r| r.set("bridge", json!("br7")), CONFIG, &["bridge", "br7"])),
        ("vrf", "no result", (|r| r.without("prevResult"), CONFIG, &["prevResult"])),
        ("vrf", "no name", (|r| r.without("vrfname"), CONFIG, &["vrf name"])),
        ("vrf", "a name that is too long", (|r| r.set("vrfname", json!("a-name-beyond-all")), CONFIG, &["vrfname"])),
        ("vrf", "the system's table", (|r| r.set("table", json!(255)), CONFIG, &["table", "255"])),
        ("vrf", "an old version", (|r| r.set("cniVersion", json!("0.3.0")), VERSION, &["incompatible CNI versions"])),
    ]);
}
