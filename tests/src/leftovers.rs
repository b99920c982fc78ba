//! What a plugin could leave behind, on a node and in a pod.

use serde_json::Value;

use crate::{Node, Pod};

/// Reads everything at once, since each program's start counts when this is done a thousand times; a line for
/// each answer, be it empty.
const NODE: &str = r#"links=$(ip -j -d link); queues=$(tc -j qdisc); rules4=$(ip -j rule); rules6=$(ip -j -6 rule)
routes4=$(ip -j route show table all); routes6=$(ip -j -6 route show table all); nft=$(nft -j list ruleset)
printf "%s\n" "$links" "$queues" "$rules4" "$rules6" "$routes4" "$routes6" "$nft"
for save in iptables-save ip6tables-save; do $save 2>/dev/null | grep "^-A" | grep -i cni; done
find /var/lib/cni /var/lib/podwire /run /etc/cni -xdev -type f 2>/dev/null | sort; true"#;

const POD: &str = r#"links=$(ip -j -d addr); rules4=$(ip -j rule); rules6=$(ip -j -6 rule)
routes4=$(ip -j route show table all); routes6=$(ip -j -6 route show table all)
printf "%s\n" "$links" "$rules4" "$rules6" "$routes4" "$routes6"
printf "somaxconn %s\n" "$(cat /proc/sys/net/core/somaxconn)""#;

/// The lines in which two descriptions differ; empty if they say the same, in whatever order.
pub fn differences(before: &str, after: &str) -> String {
    let mut lost: Vec<&str> = before.lines().collect();
    let mut all = String::new();
    for line in after.lines() {
        match lost.iter().position(|other| *other == line) {
            Some(at) => drop(lost.remove(at)),
            None => all += &format!("\n+ {line}"),
        }
    }
    all + &lost.iter().map(|line| format!("\n- {line}")).collect::<String>()
}

/// Panics if two descriptions differ, and says in which lines.
#[track_caller]
pub fn assert_same(before: &str, after: &str, context: &str) {
    let all = differences(before, after);
    assert!(all.is_empty(), "{context}{all}");
}

impl Node {
    /// Everything that a plugin could leave behind on the node, as lines of text: links, queueing disciplines,
    /// rules, routes, elements of the firewall's sets and maps, files. Empty firewall skeletons of ours (tables
    /// without elements) are not counted, nor are a network's `lock`, `last_reserved_ip`, notes and index files, which
    /// stay by design. The bench's own files are in `/run/test`.
    pub fn leftovers(&self) -> String {
        let printed = self.sh(NODE);
        let mut lines = printed.lines();
        let mut next = || lines.next().filter(|line| !line.trim().is_empty()).map_or(Value::Null, read);
        let mut all = links(&next());
        all.extend(disciplines(&next()));
        all.extend(rules(&next()).into_iter().chain(rules(&next())));
        all.extend(routes(&next()).into_iter().chain(routes(&next())));
        all.extend(elements(&next()));
        all.extend(lines.filter(|line| !stays(line)).map(str::to_owned));
        all.iter().map(|line| format!("{line}\n")).collect()
    }

    /// What is on the node and in a pod.
    pub fn state(&self, pod: &Pod) -> String {
        self.leftovers() + &self.inside(pod)
    }

    /// What is in a pod, as lines of text: links and whether they are up, addresses (not the loopback's own),
    /// rules, routes, and one sysctl that tests tune.
    pub fn inside(&self, pod: &Pod) -> String {
        let printed = self.sh(&format!("nsenter --net={} sh -c '{POD}'", pod.netns));
        let mut lines = printed.lines();
        let mut next = || lines.next().filter(|line| !line.trim().is_empty()).map_or(Value::Null, read);
        let found = next();
        let mut all = links(&found);
        // Whether there is a carrier, and so an address that follows from it, is known a moment after its cause.
        let flags = |link: &Value| {
            let all = list(&link["flags"]).iter().map(text);
            all.filter(|flag| !["NO-CARRIER", "LOWER_UP"].contains(&&**flag)).collect::<Vec<_>>().join(",")
        };
        all.extend(list(&found).iter().map(|link| {
            format!(
                "{}: {} mtu {} {}",
                text(&link["ifname"]),
                text(&link["address"]),
                link["mtu"],
                flags(link)
            )
        }));
        for link in list(&found) {
            let own = list(&link["addr_info"])
                .iter()
                .map(|one| format!("{}/{}", text(&one["local"]), one["prefixlen"]));
            all.extend(
                own.filter(|one| !["127.", "::1/", "fe80:"].iter().any(|own| one.starts_with(own)))
                    .map(|one| format!("address {one}")),
            );
        }
        all.extend(rules(&next()).into_iter().chain(rules(&next())));
        all.extend(routes(&next()).into_iter().chain(routes(&next())));
        all.extend(lines.map(str::to_owned));
        all.iter().map(|line| format!("{line}\n")).collect()
    }
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

fn links(all: &Value) -> Vec<String> {
    let others = list(all).iter().filter(|link| link["ifname"] != "lo");
    let mut lines: Vec<_> = others
        .map(|link| format!("link {} {}", text(&link["ifname"]), text(&link["linkinfo"]["info_kind"])))
        .collect();
    lines.sort();
    lines
}

/// Those that somebody attached: the kernel's own have no handle.
fn disciplines(all: &Value) -> Vec<String> {
    let attached = list(all).iter().filter(|one| one["handle"] != "0:");
    attached.map(|one| format!("queue {} of {}", text(&one["kind"]), text(&one["dev"]))).collect()
}

/// But for the kernel's own: those that every namespace is born with, and the one that comes with its first VRF and stays.
fn rules(all: &Value) -> Vec<String> {
    let own = |rule: &&Value| {
        !matches!(rule["table"].as_str(), Some("local" | "main" | "default")) && rule["priority"] != 1000
    };
    list(all).iter().filter(own).map(|rule| format!("rule {rule}")).collect()
}

/// Those that the kernel did not make by itself for an address.
fn routes(all: &Value) -> Vec<String> {
    let made = list(all).iter().filter(|route| route["protocol"] != "kernel");
    made.map(|route| {
        format!("route {} dev {} table {}", text(&route["dst"]), text(&route["dev"]), text(&route["table"]))
    })
    .collect()
}

fn elements(ruleset: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    for object in list(&ruleset["nftables"]) {
        for set in [&object["set"], &object["map"]] {
            let place = || format!("{} {} {}", text(&set["family"]), text(&set["table"]), text(&set["name"]));
            lines.extend(
                list(&set["elem"]).iter().map(|element| format!("element of {}: {element}", place())),
            );
        }
        // What Go's plugins make in nf_tables: a rule for each pod.
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
    // Locked while a deletion is in the air, and always empty.
    let of_dust = path == "/run/podwire/dust";
    let of_pool = !path.starts_with("/run/")
        && (matches!(name, "lock" | "podwire.boot" | "podwire.history")
            || name.starts_with("last_reserved_ip."));
    of_bench || of_index || of_dust || of_pool
}
