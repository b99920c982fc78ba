//! The state of a node and its pods, as a set of lines that can be compared.
//!
//! The lines contain what iproute2 prints about links, addresses, routes, rules, bridge ports and queues, every sysctl
//! of an interface, and every file under `/var/lib/cni` and `/run/cni`. Random names and numbers are replaced by their
//! owner: the node's end of a pod's veth pair is `end(pod)`, a MAC address is `mac(owner)`, and a link-local address
//! that is derived from it is `fe80::(owner)`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv6Addr;
use std::time::Duration;

use serde_json::Value;

use crate::{Node, Pod};

/// The lines of a state.
pub type Facts = BTreeSet<String>;

/// The owners of random names. They stay known after the names are gone.
#[derive(Debug, Default)]
pub struct Roles {
    roles: BTreeMap<String, String>,
    /// Texts that the test chose, which are not random.
    chosen: String,
}

/// Keys whose value depends on time or on the kernel's counting, or repeats another value: the index of a link, a
/// running timer, a bridge's id (its MAC address).
const IGNORED_KEYS: [&str; 8] =
    ["ifindex", "link_index", "link", "link_netnsid", "peer_ifindex", "bridge_id", "root_id", "addr_info"];

/// The line between the outputs of several commands.
pub(crate) const SEPARATOR: &str = "--8<--";

/// The prefix of lines, and the command that prints their JSON.
const COMMANDS: [(&str, &str); 8] = [
    ("link", "ip -j -d link"),
    ("address", "ip -j address"),
    ("route", "ip -j -4 route show table all"),
    ("route6", "ip -j -6 route show table all"),
    ("rule", "ip -j -4 rule"),
    ("rule6", "ip -j -6 rule"),
    ("port", "bridge -j -d link"),
    // A queue's reference count depends on the number of the device's queues.
    ("queue", "tc -j qdisc | sed 's/\"refcnt\":[0-9]*,//g'"),
];

const SYSCTLS: &str = "cd /proc/sys/net && grep -rs . ipv4/conf ipv6/conf ipv4/ip_forward || true";
const FILTERS: &str = "for link in $(ip -br link | sed 's/[@ ].*//'); do
  tc -j filter show dev $link ingress; tc -j filter show dev $link root; done";
const FILES: &str = "find /var/lib/cni /run/cni -type f 2>/dev/null | sort | while read file; do
  printf '%s %s ' \"$file\" $(stat -c %a \"$file\"); od -An -v -tx1 \"$file\" | tr -d '\\n '; echo; done";

impl Roles {
    /// Texts in `chosen` are not replaced.
    pub fn new(chosen: &str) -> Roles {
        Roles { roles: BTreeMap::new(), chosen: chosen.into() }
    }

    fn name(&mut self, random: &str, role: String) {
        let known =
            ["00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff"].contains(&random) || self.chosen.contains(random);
        if !random.is_empty() && !known {
            self.roles.entry(random.into()).or_insert(role);
        }
    }

    fn learn_mac(&mut self, mac: &str, owner: &str) {
        self.name(mac, format!("mac({owner})"));
        if let Some(local) = link_local(mac) {
            self.name(&local, format!("fe80::({owner})"));
        }
    }

    /// Learns the names of the links that are there now.
    pub fn learn(&mut self, node: &Node, pods: &[Pod]) {
        let inside = pods.iter().map(|pod| (pod, node.json(&format!("ip -n {} -j -d link", pod.name))));
        let inside: Vec<_> = inside.collect();
        self.learn_links(&node.json("ip -j -d link"), &inside);
    }

    /// Learns the owners of the ends of the pods' veth pairs, then of the MAC addresses.
    fn learn_links(&mut self, node: &Value, pods: &[(&Pod, Value)]) {
        let all = |links: &Value| links.as_array().cloned().unwrap_or_default();
        for (pod, links) in pods {
            let kinds = ["veth", "macvlan"];
            for inside in all(links)
                .iter()
                .filter(|link| kinds.iter().any(|kind| link["linkinfo"]["info_kind"] == *kind))
            {
                let end = all(node).into_iter().find(|end| {
                    end["linkinfo"]["info_kind"] == "veth"
                        && end["ifindex"] == inside["link_index"]
                        && end["link_index"] == inside["ifindex"]
                });
                let inside_name = text(&inside["ifname"]);
                let which = if inside_name == "eth0" { String::new() } else { format!(" {inside_name}") };
                if let Some(end) = end {
                    self.name(&text(&end["ifname"]), format!("end({}{which})", pod.name));
                    self.learn_mac(&text(&end["address"]), &format!("end {}{which}", pod.name));
                }
                self.learn_mac(&text(&inside["address"]), &format!("{}{which}", pod.name));
            }
        }
        for link in all(node) {
            self.learn_mac(&text(&link["address"]), &text(&link["ifname"]));
        }
    }

    /// The text with owners in place of random names.
    pub fn normalize(&self, line: &str) -> String {
        // Longer names first: a name can be the prefix of another.
        let mut names: Vec<_> = self.roles.iter().collect();
        names.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        names.iter().fold(line.to_string(), |line, (name, role)| line.replace(name.as_str(), role))
    }
}

/// The link-local address that the kernel derives from a MAC address.
fn link_local(mac: &str) -> Option<String> {
    let bytes: Vec<u8> =
        mac.split(':').map(|byte| u8::from_str_radix(byte, 16)).collect::<Result<_, _>>().ok()?;
    let [a, b, c, d, e, f] = bytes[..] else { return None };
    let pair = |high: u8, low: u8| u16::from_be_bytes([high, low]);
    let ends = [pair(a ^ 2, b), pair(c, 0xff), pair(0xfe, d), pair(e, f)];
    Some(Ipv6Addr::new(0xfe80, 0, 0, 0, ends[0], ends[1], ends[2], ends[3]).to_string())
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_string)
}

/// A line for each leaf of a JSON value: `path = leaf`. Numbers of lists are in the path.
pub fn leaves(path: &str, value: &Value, lines: &mut Facts) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (key, field) in fields
                .iter()
                .filter(|(key, _)| !IGNORED_KEYS.contains(&key.as_str()) && !key.ends_with("_timer"))
            {
                leaves(&format!("{path} {key}"), field, lines);
            }
        }
        Value::Array(items) if !items.is_empty() && items.iter().all(Value::is_string) => {
            let words: Vec<_> = items.iter().map(text).collect();
            lines.insert(format!("{path} = {}", words.join(" ")));
        }
        Value::Array(items) if !items.is_empty() => {
            items.iter().enumerate().for_each(|(n, item)| leaves(&format!("{path}[{n}]"), item, lines));
        }
        leaf => {
            lines.insert(format!("{path} = {}", text(leaf)));
        }
    }
}

/// The output of [`COMMANDS`] in one namespace, and its sysctls.
struct Snapshot {
    scope: String,
    values: Vec<(&'static str, Value)>,
    filters: String,
    sysctls: String,
}

impl Snapshot {
    fn read(node: &Node, pod: Option<&Pod>) -> Snapshot {
        let commands: Vec<&str> =
            COMMANDS.iter().map(|(_, command)| *command).chain([FILTERS, SYSCTLS]).collect();
        let script = commands.join(&format!("\necho '{SEPARATOR}'\n"));
        let printed = match pod {
            None => node.sh(&script),
            Some(pod) => node.sh(&format!("ip netns exec {} sh -c {}", pod.name, quoted(&script))),
        };
        let mut parts = printed.split(SEPARATOR).map(str::trim);
        let mut part = || parts.next().unwrap_or_default().to_string();
        let mut values = Vec::new();
        for (word, command) in COMMANDS {
            let printed = part();
            let value = serde_json::from_str(if printed.is_empty() { "[]" } else { &printed });
            values.push((word, value.unwrap_or_else(|error| panic!("{command}: {error}\n{printed}"))));
        }
        let (filters, sysctls) = (part(), part());
        Snapshot { scope: pod.map_or("node".into(), |pod| pod.name.clone()), values, filters, sysctls }
    }

    fn value(&self, word: &str) -> &Value {
        self.values.iter().find(|(one, _)| *one == word).map_or(&Value::Null, |(_, value)| value)
    }

    fn facts(&self, lines: &mut Facts) {
        let scope = &self.scope;
        for (word, value) in &self.values {
            for item in value.as_array().into_iter().flatten() {
                let name = text(&item["ifname"]);
                match *word {
                    "link" | "port" => {
                        lines.insert(format!("{scope} has {name}"));
                        leaves(&format!("{scope} {word} {name}"), item, lines);
                        lines.remove(&format!("{scope} {word} {name} ifname = {name}"));
                    }
                    "address" => self.addresses(&name, item, lines),
                    _ => {
                        lines.insert(format!("{scope} {word} {}", in_words(item)));
                    }
                }
            }
        }
        for printed in self.filters.lines() {
            let filters: Value =
                serde_json::from_str(printed).unwrap_or_else(|error| panic!("{error}: {printed}"));
            lines.extend(
                filters
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map(|one| format!("{scope} filter {}", in_words(one))),
            );
        }
        for sysctl in self.sysctls.lines().filter(|line| !line.contains("stable_secret")) {
            lines.insert(format!("{scope} sysctl {}", sysctl.replacen(':', " = ", 1)));
        }
    }

    fn addresses(&self, link: &str, item: &Value, lines: &mut Facts) {
        for one in item["addr_info"].as_array().into_iter().flatten() {
            let mut rest = one.as_object().cloned().unwrap_or_default();
            rest.retain(|key, _| !["family", "local", "prefixlen", "label"].contains(&key.as_str()));
            let place = format!("{} address {link} {}/{}", self.scope, text(&one["local"]), one["prefixlen"]);
            lines.insert(format!("{place}: {}", in_words(&Value::Object(rest))));
        }
    }
}

fn quoted(script: &str) -> String {
    format!("'{}'", script.replace('\'', r"'\''"))
}

/// A flat object in one line.
fn in_words(item: &Value) -> String {
    let Some(fields) = item.as_object() else { return item.to_string() };
    let shown = fields.iter().filter(|(key, _)| !IGNORED_KEYS.contains(&key.as_str()));
    let words: Vec<_> = shown
        .map(|(key, value)| match value {
            Value::Array(items) if items.is_empty() => String::new(),
            value => format!("{key} {}", text(value)),
        })
        .filter(|word| !word.is_empty())
        .collect();
    words.join(" ")
}

impl Node {
    /// The state of the node and these pods.
    pub fn facts(&self, pods: &[Pod], roles: &mut Roles) -> Facts {
        self.settle(pods);
        let snapshots: Vec<Snapshot> =
            std::iter::once(None).chain(pods.iter().map(Some)).map(|pod| Snapshot::read(self, pod)).collect();
        let inside: Vec<_> =
            pods.iter().zip(&snapshots[1..]).map(|(pod, one)| (pod, one.value("link").clone())).collect();
        roles.learn_links(snapshots[0].value("link"), &inside);
        let mut lines = Facts::new();
        snapshots.iter().for_each(|snapshot| snapshot.facts(&mut lines));
        for file in self.sh(FILES).lines() {
            let mut parts = file.split(' ');
            let mut part = || parts.next().unwrap_or_default();
            let (path, mode, bytes) = (part(), part(), part());
            match serde_json::from_slice(&unhex(bytes)) {
                Ok(value @ Value::Object(_)) => leaves(&format!("file {path}"), &value, &mut lines),
                _ => drop(lines.insert(format!("file {path} = {}", unhex(bytes).escape_ascii()))),
            }
            lines.insert(format!("mode {path} = {mode}"));
        }
        lines.iter().map(|line| roles.normalize(line)).collect()
    }

    /// Waits until no address is tentative and every link's state agrees with its carrier. It polls, because no tool
    /// reports when it has subscribed to these events.
    pub fn settle(&self, pods: &[Pod]) {
        let places: Vec<_> = pods.iter().map(|pod| format!("-n {}", pod.name)).chain(["".into()]).collect();
        for _ in 0..1000 {
            if !places.iter().any(|place| is_busy(&self.json(&format!("ip {place} -j address")))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("the links do not settle: {}", self.sh("ip address"));
    }
}

/// Whether a link has a carrier and addresses that are tentative, or a state that lags behind its carrier.
fn is_busy(links: &Value) -> bool {
    links.as_array().into_iter().flatten().filter(|link| !link["ifname"].is_null()).any(|link| {
        let has = |flag: &str| link["flags"].as_array().is_some_and(|all| all.iter().any(|one| one == flag));
        let all = link["addr_info"].as_array().cloned().unwrap_or_default();
        let is_tentative = |one: &Value| one["tentative"] == true && one["dadfailed"] != true;
        let is_down = link["operstate"] == "DOWN" || link["operstate"] == "LOWERLAYERDOWN";
        let lags = has("UP") && has("LOWER_UP") == is_down;
        lags || (has("LOWER_UP") && all.iter().any(is_tentative))
    })
}

/// Bytes in hexadecimal digits.
fn unhex(digits: &str) -> Vec<u8> {
    let byte = |at: usize| digits.get(at..at + 2).and_then(|two| u8::from_str_radix(two, 16).ok());
    (0..digits.len()).step_by(2).filter_map(byte).collect()
}
