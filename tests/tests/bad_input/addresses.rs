//! IPAM plugins: invalid ranges, and requests that cannot be met.

use serde_json::json;

use crate::{check, CONFIG, ENV, INTERNAL, IO, TRY_AGAIN};

#[test]
#[rustfmt::skip] // a table
fn ranges_that_make_no_sense_are_refused() {
    check(&[
        ("host-local", "no ipam", (|r| r.without("ipam"), CONFIG, &["ipam"])),
        ("host-local", "no ranges", (|r| r.set("ipam", json!({"type": "host-local"})), CONFIG, &["no IP ranges specified"])),
        ("host-local", "an empty list", (|r| r.set("ipam", json!({"ranges": []})), CONFIG, &["no IP ranges specified"])),
        ("host-local", "an empty set", (|r| r.set("ipam", json!({"ranges": [[]]})), CONFIG, &["range set 0", "empty"])),
        ("host-local", "ranges that are no sets", (|r| r.set("ipam", json!({"ranges": ["10.0.0.0/8"]})), CONFIG, &["ipam.ranges[0]"])),
        ("host-local", "ranges that are a text", (|r| r.set("ipam", json!({"ranges": "10.0.0.0/8"})), CONFIG, &["ipam.ranges"])),
        ("host-local", "a range without subnet", (|r| r.set("ipam", json!({"ranges": [[{}]]})), CONFIG, &["ipam.ranges[0][0]", "subnet"])),
        ("host-local", "a subnet that is none", (|r| r.set("ipam.subnet", json!("10.7.0.0")), CONFIG, &["ipam.subnet", "10.7.0.0"])),
        ("host-local", "a subnet that is a number", (|r| r.set("ipam.subnet", json!(10)), CONFIG, &["ipam.subnet"])),
        ("host-local", "a prefix of 33", (|r| r.set("ipam.subnet", json!("10.7.0.0/33")), CONFIG, &["ipam.subnet", "10.7.0.0/33"])),
        ("host-local", "a huge prefix", (|r| r.set("ipam.subnet", json!("10.7.0.0/99999999999")), CONFIG, &["ipam.subnet", "99999999999"])),
        ("host-local", "a negative prefix", (|r| r.set("ipam.subnet", json!("10.7.0.0/-1")), CONFIG, &["ipam.subnet", "-1"])),
        ("host-local", "host bits", (|r| r.set("ipam.subnet", json!("10.7.0.5/24")), CONFIG, &["ipam.subnet", "10.7.0.5/24", "10.7.0.0"])),
        ("host-local", "an exclusion that is none", (|r| r.set("ipam.exclude", json!(["ten"])), CONFIG, &["ipam.exclude", "ten"])),
        ("host-local", "a reservation of elsewhere", (|r| r.set("ipam.reserve", json!(["10.9.0.1"])), CONFIG, &["ipam.reserve", "10.9.0.1"])),
        ("host-local", "an exclusion without a range", (|r| r.set("ipam", json!({"ranges": [[{"subnet": "10.7.0.0/24"}]], "exclude": ["10.7.0.9"]})), CONFIG, &["ipam.exclude"])),
        ("host-local", "a cooldown in words", (|r| r.set("ipam.cooldown", json!("soon")), CONFIG, &["ipam.cooldown", "soon"])),
        ("host-local", "a cooldown below zero", (|r| r.set("ipam.cooldown", json!(-5)), CONFIG, &["ipam.cooldown", "-5"])),
        ("host-local", "a stickiness that is neither", (|r| r.set("ipam.sticky", json!("often")), CONFIG, &["ipam.sticky", "often"])),
        ("host-local", "a pool of /32", (|r| r.set("ipam.subnet", json!("10.7.0.0/32")), CONFIG, &["10.7.0.0/32", "too small"])),
        ("host-local", "a pool of /128", (|r| r.set("ipam.subnet", json!("fd00::/128")), CONFIG, &["fd00::/128", "too small"])),
        ("host-local", "a start outside", (|r| r.set("ipam.rangeStart", json!("10.8.0.1")), CONFIG, &["10.8.0.1", "10.7.0.0/24"])),
        ("host-local", "an end outside", (|r| r.set("ipam.rangeEnd", json!("10.8.0.1")), CONFIG, &["10.8.0.1", "10.7.0.0/24"])),
        ("host-local", "a start that is none", (|r| r.set("ipam.rangeStart", json!("first")), CONFIG, &["ipam.rangeStart", "first"])),
        ("host-local", "a range backwards", (|r| r.set("ipam.rangeStart", json!("10.7.0.9")).set("ipam.rangeEnd", json!("10.7.0.8")), CONFIG, &["10.7.0.9", "10.7.0.8"])),
        ("host-local", "a gateway that is none", (|r| r.set("ipam.gateway", json!("gw")), CONFIG, &["ipam.gateway", "gw"])),
        ("host-local", "a set of two families", (|r| r.set("ipam", json!({"ranges": [[{"subnet": "10.0.0.0/24"}, {"subnet": "fd00::/64"}]]})), CONFIG, &["ipam.ranges[0]"])),
        ("host-local", "ranges that overlap in a set", (|r| r.set("ipam", json!({"ranges": [[{"subnet": "10.0.0.0/24"}, {"subnet": "10.0.0.0/16"}]]})), CONFIG, &["ipam.ranges[0][0]", "ipam.ranges[0][1]", "overlap"])),
        ("host-local", "ranges that overlap between sets", (|r| r.set("ipam", json!({"ranges": [[{"subnet": "10.0.0.0/24"}], [{"subnet": "10.0.0.0/16"}]]})), CONFIG, &["overlap"])),
        ("host-local", "ranges of the runtime that overlap", (|r| r.set("runtimeConfig", json!({"ipRanges": [[{"subnet": "10.7.0.0/16"}]]})), CONFIG, &["overlap"])),
        ("host-local", "ranges of the runtime that are none", (|r| r.set("runtimeConfig", json!({"ipRanges": "all"})), CONFIG, &["runtimeConfig.ipRanges"])),
        ("host-local", "a route that is none", (|r| r.set("ipam.routes", json!([{"dst": "everywhere"}])), CONFIG, &["ipam.routes[0].dst", "everywhere"])),
        ("host-local", "a route without destination", (|r| r.set("ipam.routes", json!([{"gw": "10.7.0.1"}])), CONFIG, &["ipam.routes[0]", "dst"])),
        ("host-local", "a negative metric", (|r| r.set("ipam.routes", json!([{"dst": "0.0.0.0/0", "priority": -1}])), CONFIG, &["ipam.routes[0].priority"])),
        ("host-local", "two addresses of old versions", (|r| r.set("cniVersion", json!("0.2.0")).set("ipam", json!({"ranges": [[{"subnet": "10.0.0.0/24"}], [{"subnet": "10.1.0.0/24"}]]})), CONFIG, &["0.2.0", "1 address per family"])),
    ]);
}

#[test]
#[rustfmt::skip] // a table
fn requests_for_addresses_that_cannot_be_met_are_refused() {
    check(&[
        ("host-local", "an argument that is none", (|r| r.env("CNI_ARGS", "IP=ten"), ENV, &["IP=ten"])),
        ("host-local", "an unknown argument", (|r| r.env("CNI_ARGS", "FOO=1"), ENV, &["unknown args", "FOO=1"])),
        ("host-local", "an address from elsewhere", (|r| r.env("CNI_ARGS", "IP=10.8.0.9"), CONFIG, &["10.8.0.9"])),
        ("host-local", "the gateway's address", (|r| r.env("CNI_ARGS", "IP=10.7.0.1"), CONFIG, &["10.7.0.1", "gateway"])),
        ("host-local", "an address that is taken", (|r| r.env("CNI_ARGS", "IP=10.7.0.2"), INTERNAL, &["10.7.0.2", "not available"])),
        ("host-local", "two addresses of one range", (|r| r.set("runtimeConfig", json!({"ips": ["10.7.0.8", "10.7.0.9"]})), CONFIG, &["10.7.0.9"])),
        ("host-local", "an address of the runtime that is none", (|r| r.set("runtimeConfig", json!({"ips": ["10.7.0.8", "x"]})), CONFIG, &["runtimeConfig.ips[1]", "x"])),
        ("host-local", "an address of the config's author that is none", (|r| r.set("args", json!({"cni": {"ips": [7]}})), CONFIG, &["args.cni.ips[0]"])),
        ("host-local", "a second time", (|r| r.env("CNI_CONTAINERID", "blue"), INTERNAL, &["blue", "duplicate allocation is not allowed"])),
        ("host-local", "a full pool", (|r| r.set("ipam.rangeStart", json!("10.7.0.2")).set("ipam.rangeEnd", json!("10.7.0.2")), TRY_AGAIN, &["no IP addresses available", "10.7.0.2"])),
        ("bridge", "a full pool", (|r| r.set("ipam.rangeStart", json!("10.7.0.2")).set("ipam.rangeEnd", json!("10.7.0.2")), TRY_AGAIN, &["no IP addresses available", "10.7.0.2"])),
        ("ptp", "a full pool", (|r| r.set("ipam.rangeStart", json!("10.7.0.2")).set("ipam.rangeEnd", json!("10.7.0.2")), TRY_AGAIN, &["no IP addresses available", "10.7.0.2"])),
        ("host-local", "a pool of the gateway alone", (|r| r.set("ipam.rangeStart", json!("10.7.0.1")).set("ipam.rangeEnd", json!("10.7.0.1")), TRY_AGAIN, &["no IP addresses available"])),
        ("host-local", "a missing resolv.conf", (|r| r.set("ipam.resolvConf", json!("/run/test/nowhere")), IO, &["resolvConf", "/run/test/nowhere"])),
        ("host-local", "a missing range file", (|r| r.set("ipam", json!({"rangeFromFile": "/run/test/nowhere"})), IO, &["rangeFromFile", "/run/test/nowhere"])),
        ("host-local", "records in a device", (|r| r.set("ipam.dataDir", json!("/dev/null")), IO, &["/dev/null/net"])),
        ("host-local", "records in no folder that can be", (|r| r.set("ipam.dataDir", json!("/proc/networks")), IO, &["/proc/networks/net"])),
        ("host-local", "records in a folder with a NUL byte", (|r| r.set("ipam.dataDir", json!("/run/a\0b")), CONFIG, &["ipam.dataDir"])),
        ("host-local", "records in a number", (|r| r.set("ipam.dataDir", json!(5)), CONFIG, &["ipam.dataDir"])),
        ("static", "no ipam", (|r| r.without("ipam"), CONFIG, &["ipam"])),
        ("static", "an address without prefix", (|r| r.set("ipam.addresses", json!([{"address": "10.9.0.5"}])), CONFIG, &["ipam.addresses[0].address", "10.9.0.5"])),
        ("static", "an empty entry", (|r| r.set("ipam.addresses", json!([{}])), CONFIG, &["ipam.addresses[0].address"])),
        ("static", "addresses that are a text", (|r| r.set("ipam.addresses", json!("10.9.0.5/24")), CONFIG, &["ipam.addresses"])),
        ("static", "a gateway that is none", (|r| r.set("ipam.addresses", json!([{"address": "10.9.0.5/24", "gateway": "x"}])), CONFIG, &["ipam.addresses[0].gateway", "x"])),
        ("static", "an argument that is none", (|r| r.env("CNI_ARGS", "IP=10.9.0.6"), CONFIG, &["10.9.0.6", "CNI_ARGS"])),
        ("static", "a gateway in the arguments that is none", (|r| r.env("CNI_ARGS", "GATEWAY=x"), ENV, &["GATEWAY", "x"])),
        ("static", "an unknown argument", (|r| r.env("CNI_ARGS", "FOO=1"), ENV, &["unknown args", "FOO=1"])),
        ("static", "an address of the runtime that is none", (|r| r.set("runtimeConfig", json!({"ips": ["x"]})), CONFIG, &["runtimeConfig.ips[0]", "x"])),
        ("static", "two addresses of old versions", (|r| r.set("cniVersion", json!("0.2.0")).env("CNI_ARGS", "IP=10.9.0.6/24"), CONFIG, &["0.2.0", "1 address per family"])),
    ]);
}

#[test]
#[rustfmt::skip] // a table
fn invalid_dhcp_options_fail() {
    check(&[
        ("dhcp", "no ipam", (|r| r.without("ipam"), CONFIG, &["ipam"])),
        ("dhcp", "a family that is none", (|r| r.set("ipam.family", json!("ipx")), CONFIG, &["ipam.family", "ipx"])),
        ("dhcp", "a family that is a number", (|r| r.set("ipam.family", json!(4)), CONFIG, &["ipam.family"])),
        ("dhcp", "a negative priority", (|r| r.set("ipam.priority", json!(-1)), CONFIG, &["ipam.priority", "-1"])),
        ("dhcp", "a socket that is a number", (|r| r.set("ipam.daemonSocketPath", json!(5)), CONFIG, &["ipam.daemonSocketPath"])),
        ("dhcp", "an unknown option", (|r| r.set("ipam.request", json!([{"option": "hostname"}])), CONFIG, &["ipam.request[0].option", "hostname"])),
        ("dhcp", "an option that is a number", (|r| r.set("ipam.request", json!([{"option": 42}])), CONFIG, &["ipam.request[0].option"])),
        ("dhcp", "option 256", (|r| r.set("ipam.provide", json!([{"option": "12", "value": "a"}, {"option": "256", "value": "b"}])), CONFIG, &["ipam.provide[1].option", "256"])),
        ("dhcp", "the daemon's own option", (|r| r.set("ipam.provide", json!([{"option": "53", "value": "1"}])), CONFIG, &["ipam.provide[0].option", "53"])),
        ("dhcp", "a value that is too long", (|r| r.set("ipam.provide", json!([{"option": "12", "value": "x".repeat(256)}])), CONFIG, &["ipam.provide[0]", "value too long"])),
        ("dhcp", "no daemon", (|r| r, TRY_AGAIN, &["error dialing DHCP daemon", "/run/cni/dhcp.sock"])),
        ("dhcp", "no daemon elsewhere", (|r| r.set("ipam.daemonSocketPath", json!("/run/test/x")), TRY_AGAIN, &["error dialing DHCP daemon", "/run/test/x"])),
    ]);
}
