//! Cases for host-local and static, called directly.

use podwire_tests::Case;
use serde_json::{json, Value};

use crate::bridge::{V4, V6};
use crate::differences::*;

fn case(name: &'static str, kind: &str, mut ipam: Value) -> Case {
    ipam["type"] = json!(kind);
    Case::new(name, &[json!({"type": kind, "ipam": ipam})])
}

/// A case with keys besides `ipam`.
fn asked(name: &'static str, kind: &str, ipam: Value, keys: Value) -> Case {
    let mut config = json!({"type": kind, "ipam": ipam});
    config["ipam"]["type"] = json!(kind);
    for (key, value) in keys.as_object().into_iter().flatten() {
        config[key] = value.clone();
    }
    Case::new(name, &[config]).pods(1)
}

const RESOLV: &str = "printf 'nameserver 192.0.2.53\\nnameserver 2001:db8::53\\n# no\\ndomain example.net\\n\
                      search a.example b.example\\noptions ndots:5 rotate\\n' > /run/resolv.conf";

const TAKEN: &str = "mkdir -p /var/lib/cni/networks/net; cd /var/lib/cni/networks/net";

pub fn host_local() -> Vec<Case> {
    let plain = |name, ipam| case(name, "host-local", ipam).differs(&[LEASE]);
    let local = |name, ipam| plain(name, ipam).differs(&[NO_EMPTY_DNS]);
    let asked = |name, ipam, keys| asked(name, "host-local", ipam, keys).differs(&[LEASE, NO_EMPTY_DNS]);
    let (one, both) = (json!({"subnet": V4}), json!({"ranges": [[{"subnet": V4}], [{"subnet": V6}]]}));
    let several =
        json!({"ranges": [[{"subnet": "10.1.0.0/30"}, {"subnet": "10.2.0.0/24"}], [{"subnet": V6}]]});
    let part =
        json!({"subnet": V4, "rangeStart": "10.1.0.254", "rangeEnd": "10.1.0.255", "gateway": "10.1.0.99"});
    let part6 = json!({"subnet": V6, "rangeStart": "fd00:1::fffe", "rangeEnd": "fd00:1::ffff"});
    let routes = json!([{"dst": "0.0.0.0/0"}, {"dst": "10.0.0.0/8", "gw": "10.1.0.3"}]);
    let of_runtime = json!({"ipRanges": [[{"subnet": "10.6.0.0/24"}], [{"subnet": V6}]]});
    let of_containerd = json!({"IPRanges": [[{"Subnet": "10.6.0.0/24", "Gateway": "10.6.0.254"}]]});
    vec![
        local("a subnet", one.clone()).pods(3),
        local("a subnet of IPv6", json!({"subnet": V6})),
        local("a part of a subnet", part),
        local("a part of a subnet of IPv6", part6),
        local("several ranges and both families", several).pods(3),
        local("a subnet and ranges", json!({"subnet": "10.7.0.0/24", "ranges": [[{"subnet": V6}]]})),
        local("routes", json!({"subnet": V4, "routes": routes})),
        local("another folder", json!({"subnet": V4, "dataDir": "/var/lib/cni/elsewhere"})),
        plain("name servers of a file", json!({"subnet": V4, "resolvConf": "/run/resolv.conf"}))
            .after(RESOLV),
        local("keys in any case", json!({"SUBNET": V4, "RangeStart": "10.1.0.100"})),
        plain("0.2.0", both.clone()).version("0.2.0"),
        plain("0.4.0", both.clone()).version("0.4.0"),
        local("an address in CNI_ARGS", one.clone()).pods(1).env("CNI_ARGS", "IP=10.1.0.77"),
        local("an address in CNI_ARGS beside what others want", one.clone())
            .pods(1)
            .env("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAME=web;IP=10.1.0.77/24"),
        asked("addresses in args", both, json!({"args": {"cni": {"ips": ["10.1.0.9", "fd00:1::9"]}}})),
        asked("addresses of the runtime", one.clone(), json!({"runtimeConfig": {"ips": ["10.1.0.8/24"]}})),
        asked("ranges of the runtime", json!({}), json!({"runtimeConfig": of_runtime})),
        asked("ranges as containerd writes them", one.clone(), json!({"runtimeConfig": of_containerd})),
        // The allocation is round robin: the address that was released first is allocated next.
        local("after the last address comes the first", one.clone())
            .after(&format!("{TAKEN}; printf 10.1.0.253 > last_reserved_ip.0")),
        local("an address that is taken is skipped", one.clone()).after(&format!(
            "{TAKEN}; printf 'other\\r\\neth0' > 10.1.0.3; printf 10.1.0.2 > last_reserved_ip.0"
        )),
        local("an entry of old without interface is skipped", one)
            .after(&format!("{TAKEN}; printf other > 10.1.0.3")),
    ]
}

pub fn host_local_refusals() -> Vec<Case> {
    let case = |name, ipam| case(name, "host-local", ipam).pods(1);
    let asked = |name, ipam, keys| asked(name, "host-local", ipam, keys);
    // An invalid config: no ADD can have succeeded with it.
    let invalid = |name, ipam| case(name, ipam).differs(&[CODE, DEL]);
    let small = json!({"ranges": [[{"subnet": V4}], [{"subnet": "10.2.0.0/30"}]]});
    let backwards = json!({"subnet": V4, "rangeStart": "10.1.0.9", "rangeEnd": "10.1.0.5"});
    let bad_address = json!({"args": {"cni": {"ips": ["ten"]}}});
    vec![
        case("an empty pool", json!({"subnet": "10.1.0.0/30"}))
            .pods(2)
            .fails("no IP addresses available in range set")
            .differs(&[LEASE, NO_EMPTY_DNS, CODE]),
        case("an empty second pool", small)
            .pods(2)
            .fails("no IP addresses available in range set")
            .differs(&[LEASE, NO_EMPTY_DNS, CODE]),
        case("the gateway's address", json!({"subnet": V4}))
            .env("CNI_ARGS", "IP=10.1.0.1")
            .fails("10.1.0.1")
            .differs(&[CODE, UNTOUCHED]),
        case("an address of elsewhere", json!({"subnet": V4}))
            .env("CNI_ARGS", "IP=10.2.0.1")
            .fails("10.2.0.1")
            .differs(&[CODE, UNTOUCHED]),
        case("an address that is taken", json!({"subnet": V4}))
            .after(&format!("{TAKEN}; printf 'other\\r\\neth0' > 10.1.0.7"))
            .env("CNI_ARGS", "IP=10.1.0.7")
            .fails("requested IP address 10.1.0.7 is not available in range set")
            .differs(&[LEASE]),
        case("a second ADD", json!({"subnet": V4}))
            .after(&format!("{TAKEN}; printf 'p1\\r\\neth0' > 10.1.0.7"))
            .fails("10.1.0.7 has been allocated to p1, duplicate allocation is not allowed")
            .differs(&[LEASE]),
        case("a second ADD, the first was of old", json!({"subnet": V4}))
            .after(&format!("{TAKEN}; printf p1 > 10.1.0.7"))
            .fails("10.1.0.7 has been allocated to p1, duplicate allocation is not allowed")
            .differs(&[LEASE]),
        invalid("no addresses", json!({})).fails(""),
        invalid("a subnet with host bits", json!({"subnet": "10.1.0.5/24"})).fails("host bits set"),
        invalid("a subnet that is none", json!({"subnet": "10.1.0.0"})).fails("10.1.0.0"),
        invalid("a subnet of one address", json!({"subnet": "10.1.0.0/32"})).fails("too small"),
        invalid("a range outside", json!({"subnet": V4, "rangeStart": "10.2.0.1"})).fails("10.2.0.1"),
        invalid("a range backwards", backwards).fails(""),
        invalid("ranges that overlap", json!({"ranges": [[{"subnet": V4}, {"subnet": "10.1.0.0/28"}]]}))
            .fails("overlap"),
        invalid("sets that overlap", json!({"ranges": [[{"subnet": V4}], [{"subnet": "10.1.0.0/28"}]]}))
            .fails("overlap"),
        invalid("a set of both families", json!({"ranges": [[{"subnet": V4}, {"subnet": V6}]]})).fails(""),
        invalid(
            "two addresses of a family",
            json!({"ranges": [[{"subnet": V4}], [{"subnet": "10.2.0.0/24"}]]}),
        )
        .version("0.2.0")
        .fails("CNI version 0.2.0 does not support more than 1 address per family"),
        invalid("unknown CNI_ARGS", json!({"subnet": V4})).env("CNI_ARGS", "COLOUR=red").fails("COLOUR"),
        case("no file of name servers", json!({"subnet": V4, "resolvConf": "/run/nowhere"}))
            .fails("/run/nowhere")
            .differs(&[CODE, UNTOUCHED]),
        asked("an address that is none", json!({"subnet": V4}), bad_address)
            .fails("ten")
            .differs(&[CODE, DEL]),
        asked("no ipam", json!({"subnet": V4}), json!({"ipam": null}))
            .fails("IPAM config missing 'ipam' key")
            .differs(&[CODE, DEL]),
    ]
}

/// static.
pub fn fixed() -> Vec<Case> {
    let case = |name, ipam| case(name, "static", ipam).pods(1);
    let asked = |name, ipam, keys| asked(name, "static", ipam, keys);
    let both = json!({"addresses": [
        {"address": "10.1.0.5/24", "gateway": "10.1.0.1"}, {"address": "fd00:1::5/64", "gateway": "fd00:1::1"}]});
    let mut full = both.clone();
    full["routes"] = json!([{"dst": "0.0.0.0/0"}, {"dst": "192.168.0.0/16", "gw": "10.1.0.2"}]);
    full["dns"] = json!({"nameservers": ["192.0.2.53"], "domain": "example.net", "search": ["a.b"], "options": ["ndots:2"]});
    vec![
        case("addresses", both.clone()).differs(&[NO_EMPTY_DNS]),
        case("routes and name servers", full.clone()),
        case("0.2.0", full.clone()).version("0.2.0"),
        case("0.4.0", full).version("0.4.0"),
        case("CNI_ARGS", json!({}))
            .env("CNI_ARGS", "IP=10.2.0.7/16,fd01::7/64;GATEWAY=10.2.0.1,fd01::1")
            .differs(&[NO_EMPTY_DNS]),
        asked("args", json!({}), json!({"args": {"cni": {"ips": ["10.3.0.7/24"]}}})).differs(&[NO_EMPTY_DNS]),
        asked("the runtime", json!({}), json!({"runtimeConfig": {"ips": ["10.3.0.7/24", "fd01::7/64"]}}))
            .differs(&[NO_EMPTY_DNS]),
        asked(
            "the runtime over the config",
            both.clone(),
            json!({"runtimeConfig": {"ips": ["10.1.0.7/24"]}}),
        )
        .differs(&[NO_EMPTY_DNS, GATEWAY]),
        case("an address that is none", json!({"addresses": [{"address": "10.1.0.5"}]}))
            .fails("10.1.0.5")
            .differs(&[CODE]),
        case(
            "two of a family in 0.2.0",
            json!({"addresses": [{"address": "10.1.0.5/24"}, {"address": "10.1.0.6/24"}]}),
        )
        .version("0.2.0")
        .fails("CNI version 0.2.0 does not support more than 1 address per family")
        .differs(&[CODE]),
        case("unknown CNI_ARGS", both).env("CNI_ARGS", "COLOUR=red").fails("COLOUR").differs(&[CODE]),
    ]
}
