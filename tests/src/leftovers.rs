//! The objects that a plugin could leave behind, on a node and in a pod.

use serde_json::Value;

use crate::facts::SEPARATOR;
use crate::{Node, Pod};

/// Reads everything with few programs, because tests run this script thousands of times. `ip` and `tc` print lists,
/// `nft` prints an object, and the rest are lines. Rules of iptables are in nf_tables, or the kernel lists a legacy
/// table.
const NODE: &str = r#"printf "link\nrule\nroute show table all\n" | ip -4 -j -d -force -batch -
printf "rule\nroute show table all\n" | ip -6 -j -d -force -batch -
tc -j qdisc; echo
nft=$(nft -j list ruleset); printf "%s\n" "$nft"
{ read -r old </proc/net/ip_tables_names || read -r old </proc/net/ip6_tables_names; } 2>/dev/null
case "$old$nft" in *CNI-* | [!{]*) { iptables-save; ip6tables-save; } 2>/dev/null | grep -i "^-A.*cni" ;; esac
find /var/lib/cni /var/lib/podwire /run /etc/cni -xdev -type f 2>/dev/null; true"#;

const POD: &str = r#"ip -j -d addr
for family in 4 6; do printf "rule\nroute show table all\n" | ip -$family -j -d -force -batch -; done
echo "somaxconn $(cat /proc/sys/net/core/somaxconn)""#;

/// The lines in which two states differ, in any order; empty if they are the same.
pub fn differences(before: &str, after: &str) -> String {
    let mut removed: Vec<&str> = before.lines().collect();
    let mut all = String::new();
    for line in after.lines() {
        match removed.iter().position(|other| *other == line) {
            Some(at) => drop(removed.remove(at)),
            None => all += &format!("\n+ {line}"),
        }
    }
    all + &removed.iter().map(|line| format!("\n- {line}")).collect::<String>()
}

/// Panics with the lines in which two states differ.
#[track_caller]
pub fn assert_same(before: &str, after: &str, context: &str) {
    let all = differences(before, after);
    assert!(all.is_empty(), "{context}{all}");
}

impl Node {
    /// The objects that a plugin could leave behind on the node, as lines: links, qdiscs, rules, routes,
    /// elements of firewall sets and maps, files. It leaves out Podwire's firewall tables without elements, and a
    /// network's `lock`, `last_reserved_ip`, history and index files, which stay by design. Files of the tests are in
    /// `/run/test`.
    pub fn leftovers(&self) -> String {
        describe_node(&self.sh(NODE))
    }

    /// The state of the node and a pod.
    pub fn state(&self, pod: &Pod) -> String {
        let printed = self.sh(&format!("{NODE}; echo '{SEPARATOR}'; {}", into(pod)));
        let (node, pod) = printed.split_once(SEPARATOR).expect("both parts");
        describe_node(node) + &describe_pod(pod)
    }

    /// The state of a pod, as lines: links and whether they are up, addresses (without the loopback's), rules, routes,
    /// and one sysctl that tests tune.
    pub fn inside(&self, pod: &Pod) -> String {
        describe_pod(&self.sh(&into(pod)))
    }
}

fn into(pod: &Pod) -> String {
    format!("nsenter --net={} sh -c '{POD}'", pod.netns)
}

/// The output of the programs: the objects of their lists, and the other lines.
fn parse(printed: &str) -> (Vec<Value>, Vec<&str>) {
    let (json, others): (Vec<&str>, Vec<&str>) =
        printed.lines().filter(|line| !line.trim().is_empty()).partition(|line| line.starts_with(['[', '{']));
    let objects = json.into_iter().map(read).flat_map(|value| match value {
        Value::Array(all) => all,
        one => vec![one],
    });
    (objects.collect(), others)
}

/// Sorted, a line each.
fn joined(mut all: Vec<String>) -> String {
    all.sort();
    all.iter().map(|line| format!("{line}\n")).collect()
}

fn describe_node(printed: &str) -> String {
    let (objects, others) = parse(printed);
    let mut all = links(&objects);
    all.extend(qdiscs(&objects));
    all.extend(rules(&objects));
    all.extend(routes(&objects));
    all.extend(elements(&objects));
    all.extend(others.into_iter().filter(|line| !stays(line)).map(str::to_owned));
    joined(all)
}

fn describe_pod(printed: &str) -> String {
    let (objects, others) = parse(printed);
    let mut all = links(&objects);
    // The kernel reports the carrier, and the address that depends on it, with a delay.
    let flags = |link: &Value| {
        let all = list(&link["flags"]).iter().map(text);
        all.filter(|flag| !["NO-CARRIER", "LOWER_UP"].contains(&&**flag)).collect::<Vec<_>>().join(",")
    };
    for link in objects.iter().filter(|one| !one["ifname"].is_null()) {
        let (name, mac) = (text(&link["ifname"]), text(&link["address"]));
        all.push(format!("{name}: {mac} mtu {} {}", link["mtu"], flags(link)));
        let own = list(&link["addr_info"])
            .iter()
            .map(|one| format!("{}/{}", text(&one["local"]), one["prefixlen"]));
        all.extend(
            own.filter(|one| !["127.", "::1/", "fe80:"].iter().any(|own| one.starts_with(own)))
                .map(|one| format!("address {one}")),
        );
    }
    all.extend(rules(&objects));
    all.extend(routes(&objects));
    all.extend(others.into_iter().map(str::to_owned));
    joined(all)
}

fn read(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn links(all: &[Value]) -> Vec<String> {
    let others = all.iter().filter(|one| !one["ifname"].is_null() && one["ifname"] != "lo");
    others
        .map(|link| format!("link {} {}", text(&link["ifname"]), text(&link["linkinfo"]["info_kind"])))
        .collect()
}

/// The attached qdiscs; the kernel's own have no handle.
fn qdiscs(all: &[Value]) -> Vec<String> {
    let attached = all.iter().filter(|one| !one["handle"].is_null() && one["handle"] != "0:");
    attached.map(|one| format!("queue {} of {}", text(&one["kind"]), text(&one["dev"]))).collect()
}

/// The rules, except the kernel's: those of every new namespace, and the one that the first VRF adds, which stays.
fn rules(all: &[Value]) -> Vec<String> {
    let own = |rule: &&Value| {
        !matches!(rule["table"].as_str(), Some("local" | "main" | "default")) && rule["priority"] != 1000
    };
    let rules = all.iter().filter(|one| !one["priority"].is_null());
    rules.filter(own).map(|rule| format!("rule {rule}")).collect()
}

/// The routes, except those that the kernel adds for an address.
fn routes(all: &[Value]) -> Vec<String> {
    let routes = all.iter().filter(|one| !one["dst"].is_null() && one["priority"].is_null());
    let made = routes.filter(|route| route["protocol"] != "kernel");
    made.map(|route| {
        format!("route {} dev {} table {}", text(&route["dst"]), text(&route["dev"]), text(&route["table"]))
    })
    .collect()
}

fn elements(all: &[Value]) -> Vec<String> {
    let mut lines = Vec::new();
    for object in all.iter().flat_map(|one| list(&one["nftables"])) {
        for set in [&object["set"], &object["map"]] {
            let place = || format!("{} {} {}", text(&set["family"]), text(&set["table"]), text(&set["name"]));
            lines.extend(
                list(&set["elem"]).iter().map(|element| format!("element of {}: {element}", place())),
            );
        }
        // Go's plugins add a rule for each pod to nf_tables.
        let rule = &object["rule"];
        let table = text(&rule["table"]);
        if table.starts_with("cni_") || (rule["family"] == "bridge" && table == "nat") {
            lines.push(format!("rule {rule}"));
        }
    }
    lines
}

fn stays(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    let of_bench = ["/run/netns/", "/run/test/", "/run/xtables.lock"].iter().any(|own| path.starts_with(own));
    let of_index = path.starts_with("/run/podwire/host-local/") && matches!(name, "token" | "snapshot");
    // Locked while a deletion is in progress, and always empty.
    let is_cleanup_lock = path == "/run/podwire/cleanup.lock";
    let of_pool = !path.starts_with("/run/")
        && (matches!(name, "lock" | "podwire.boot" | "podwire.history")
            || name.starts_with("last_reserved_ip."));
    of_bench || of_index || is_cleanup_lock || of_pool
}
