//! Texts of the IPAM plugins.

use std::os::unix::fs::MetadataExt;

use serde_json::{json, Value};

use crate::test_pod::with_pod;
use crate::{add, check, compare, text, Request, Row};

#[test]
fn of_static() {
    let one = json!({"addresses": [{"address": "10.1.0.5/24", "gateway": "10.1.0.1"}]});
    let more = |key: &str, value: Value| {
        let mut config = json!({"ipam": one});
        config[key] = value;
        config
    };
    let with_args = |args: &'static str, text: &str| Row { args, ..add("static", more("x", json!(1)), text) };
    let entry = "an entry in the 'ips' field is NOT in CIDR notation, got: '10.1.0.5'";
    let families = "CNI version 0.2.0 does not support more than 1 address per family";
    let recorded = json!({"ips": [{"address": "10.1.0.5/24", "gateway": "10.1.0.9"}]});
    with_pod(|pod| {
        compare(
            pod,
            vec![
                add("static", json!({}), "IPAM config missing 'ipam' key"),
                add(
                    "static",
                    json!({"ipam": {"addresses": [{"address": "10.1.0.5"}]}}),
                    "the 'address' field is expected to be in CIDR notation, got: '10.1.0.5'",
                ),
                with_args(
                    "IP=10.1.0.5",
                    "the 'ip' field is expected to be in CIDR notation, got: '10.1.0.5'",
                ),
                with_args("GATEWAY=x", "invalid gateway address: x"),
                with_args("A=1", "ARGS: unknown args [\"A=1\"]"),
                add("static", more("args", json!({"cni": {"ips": ["10.1.0.5"]}})), entry),
                add("static", more("runtimeConfig", json!({"ips": ["10.1.0.5"]})), entry),
                Row { args: "IP=10.2.0.5/24", ..add("static", more("cniVersion", json!("0.2.0")), families) },
                check("static", json!({"ipam": one}), "Required prevResult missing"),
            ],
        );
        let request = Request::of(pod, "CHECK");
        let config = json!({"cniVersion": "1.1.0", "name": "net", "ipam": one, "prevResult": recorded});
        let found = request.send("static", &config.to_string());
        assert_eq!(text(&found), "static: Failed to match addr 10.1.0.5 on interface eth0");
    });
}

#[test]
fn of_host_local() {
    let range = |range: Value| json!({"ipam": range});
    let sets = |sets: Value| json!({"ipam": {"ranges": sets}});
    let refused = |range_of_one: Value, text: &str| add("host-local", range(range_of_one), text);
    let in_set = |sets_of: Value, text: &str| add("host-local", sets(sets_of), text);
    let (a, b) = (json!({"subnet": "10.1.0.0/24"}), json!({"subnet": "10.1.0.0/25"}));
    let mut old = sets(json!([[a], [{"subnet": "10.2.0.0/24"}]]));
    old["cniVersion"] = json!("0.2.0");
    with_pod(|pod| {
        compare(
            pod,
            vec![
                add("host-local", json!({}), "IPAM config missing 'ipam' key"),
                refused(json!({}), "no IP ranges specified"),
                refused(
                    json!({"subnet": "10.1.0.0/32"}),
                    "invalid range set 0: Network 10.1.0.0/32 too small to allocate from",
                ),
                refused(
                    json!({"subnet": "10.1.0.1/24"}),
                    "invalid range set 0: Network has host bits set. For a subnet mask of length 24 the network \
                     address is 10.1.0.0",
                ),
                refused(
                    json!({"subnet": "10.1.0.0/24", "rangeStart": "10.9.0.1"}),
                    "invalid range set 0: RangeStart 10.9.0.1 not in network 10.1.0.0/24",
                ),
                refused(
                    json!({"subnet": "10.1.0.0/24", "rangeEnd": "10.9.0.1"}),
                    "invalid range set 0: RangeEnd 10.9.0.1 not in network 10.1.0.0/24",
                ),
                in_set(json!([[a, {"subnet": "fd00::/64"}]]), "invalid range set 0: mixed address families"),
                in_set(
                    json!([[a, b]]),
                    "invalid range set 0: subnets 10.1.0.1-10.1.0.254 and 10.1.0.1-10.1.0.126 overlap",
                ),
                in_set(json!([[a], [b]]), "range set 0 overlaps with 1"),
                in_set(json!([[]]), "invalid range set 0: empty range set"),
                add("host-local", old, "CNI version 0.2.0 does not support more than 1 address per family"),
                Row {
                    args: "IP=10.1.0.1",
                    ..refused(
                        a.clone(),
                        "failed to allocate for range 0: requested ip 10.1.0.1 is subnet's gateway",
                    )
                },
                Row { args: "IP=10.9.0.5", ..refused(a.clone(), "failed to allocate all requested IPs: 10.9.0.5") },
            ],
        );
    });
}

/// A pool of one address, and what it says when the address is taken.
#[test]
fn of_host_local_for_a_full_pool() {
    with_pod(|pod| {
        let folder = std::env::temp_dir().join(format!("pool-{}", pod.container));
        let ipam = json!({"type": "host-local", "subnet": "10.1.0.0/30", "dataDir": folder});
        let config = json!({"cniVersion": "1.1.0", "name": "net", "ipam": ipam}).to_string();
        let holder = Request { container: "holder".into(), ..Request::of(pod, "ADD") };
        assert_eq!(holder.send("host-local", &config)["ips"][0]["address"], "10.1.0.2/30");
        let other = Request { container: "other".into(), ..holder.clone() };
        let requesting = Request { args: "IP=10.1.0.2".into(), ..other.clone() };
        let found = [&holder, &other, &requesting].map(|request| text(&request.send("host-local", &config)));
        // The index of the pool, by the folder's device and inode.
        let pool = std::fs::metadata(folder.join("net")).unwrap();
        let _ = std::fs::remove_dir_all(format!("/run/podwire/host-local/{}-{}", pool.dev(), pool.ino()));
        let _ = std::fs::remove_dir_all(&folder);
        assert_eq!(
            found,
            [
                "failed to allocate for range 0: 10.1.0.2 has been allocated to holder, duplicate allocation is not \
                 allowed",
                "failed to allocate for range 0: no IP addresses available in range set: 10.1.0.1-10.1.0.2",
                "failed to allocate for range 0: requested IP address 10.1.0.2 is not available in range set \
                 10.1.0.1-10.1.0.2",
            ]
        );
    });
}

/// What the daemon answers is in the suite `dhcp`.
#[test]
fn of_dhcp() {
    let dialing =
        "error dialing DHCP daemon: dial unix /nowhere/dhcp.sock: connect: no such file or directory";
    with_pod(|pod| {
        let config = json!({"ipam": {"type": "dhcp", "daemonSocketPath": "/nowhere/dhcp.sock"}});
        compare(pod, vec![add("dhcp", config, dialing)]);
    });
}
