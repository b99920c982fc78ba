//! Random worlds without mistakes: the same seed and number are the same world.

use podwire_ip::IpFamily;
use serde_json::{json, Value};

use crate::world::{endpoint, service, slice, World, DUAL, SERVERS};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn percent(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// Some of these, in random order.
    fn some_of<T: Clone>(&mut self, all: &[T], count: usize) -> Vec<T> {
        let mut left = all.to_vec();
        (0..count.min(all.len())).map(|_| left.remove(self.below(left.len()))).collect()
    }
}

/// The same names in every world, so that one world turns into the next by changes of Services.
const NAMES: [&str; 3] = ["a", "b", "c"];
const RANGES: [&str; 10] = [
    "192.0.2.2/32",
    "192.0.2.0/24",
    "10.1.0.1/32",
    "10.1.0.0/24",
    " 10.2.0.0/16 ",
    "0.0.0.0/0",
    "fd00:9::2/128",
    "fd00:1::/64",
    "fd00:2::9/128",
    "::/0",
];

pub fn world(seed: u64, number: usize) -> World {
    let mut random = Random(seed.wrapping_mul(0x1000).wrapping_add(number as u64));
    let count = 1 + random.below(NAMES.len());
    let mut objects = Vec::new();
    for (index, name) in (1..).zip(&NAMES[..count]) {
        objects.push(random_service(&mut random, name, index));
        objects.extend(random_slices(&mut random, name));
    }
    World::new(format!("random world {number}"), objects)
}

fn random_service(random: &mut Random, name: &str, number: u8) -> Value {
    let families =
        random.one_of(&[DUAL, DUAL, &[IpFamily::V6, IpFamily::V4], &[IpFamily::V4], &[IpFamily::V6]]);
    let kind = random.one_of(&["ClusterIP", "NodePort", "LoadBalancer", "LoadBalancer"]);
    let mut more = json!({ "type": kind, "ports": random_ports(random) });
    let policy = |random: &mut Random| if random.percent(50) { "Local" } else { "Cluster" };
    more["internalTrafficPolicy"] = policy(random).into();
    let own = |host: usize| {
        [
            format!("198.51.100.{}", host + usize::from(number)),
            format!("fd00:7::{}", host + usize::from(number)),
        ]
    };
    let some_of_both = |random: &mut Random, host: usize| {
        let count = 1 + random.below(2);
        random.some_of(&own(host), count)
    };
    let external = random.percent(40);
    if external {
        more["externalIPs"] = some_of_both(random, 10).into();
    }
    if external || kind != "ClusterIP" {
        more["externalTrafficPolicy"] = policy(random).into();
    }
    if random.percent(25) {
        more["sessionAffinity"] = "ClientIP".into();
        more["sessionAffinityConfig"] = json!({ "clientIP": { "timeoutSeconds": 100 + random.below(2) } });
    }
    if kind == "LoadBalancer" && random.percent(50) {
        let count = 1 + random.below(3);
        more["loadBalancerSourceRanges"] = random.some_of(&RANGES, count).into();
    }
    let mut service = service(name, number, families, more);
    if kind == "LoadBalancer" {
        // Sometimes the balancer has the address that is also an external IP.
        let host = random.one_of(&[10, 20, 20]);
        let mut ingress = Vec::new();
        for ip in some_of_both(random, host) {
            ingress.push(match random.below(4) {
                0 => json!({ "ip": ip }),
                1 => json!({ "ip": ip, "ipMode": "Proxy" }),
                _ => json!({ "ip": ip, "ipMode": "VIP" }),
            });
        }
        service["status"] = json!({ "loadBalancer": { "ingress": ingress } });
    }
    if random.percent(5) {
        let label =
            random.one_of(&["service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless"]);
        service["metadata"]["labels"] = json!({ label: "x" });
    }
    service
}

/// The slices have the ports `t` and `u`: `other` has no endpoint.
fn random_ports(random: &mut Random) -> Value {
    let tcp = json!({ "name": "t", "port": 80, "protocol": "TCP" });
    let udp = json!({ "name": "u", "port": random.one_of(&[80, 53]), "protocol": "UDP" });
    match random.below(5) {
        0 => json!([tcp]),
        1 => json!([udp]),
        2 => json!([tcp, udp, { "name": "other", "port": 8443, "protocol": "TCP" }]),
        _ => json!([tcp, udp]),
    }
}

fn random_slices(random: &mut Random, service: &str) -> Vec<Value> {
    let hints = random.below(6);
    let mut slices = Vec::new();
    for family in IpFamily::ALL {
        let count = random.one_of(&[0, 1, 1, 2, 2, 3, 4]);
        let servers = random.some_of(&SERVERS, count);
        let endpoints: Vec<Value> =
            servers.iter().map(|server| endpoint(family, &random_endpoint(random, server, hints))).collect();
        let (first, second) = endpoints.split_at(random.below(endpoints.len() + 1));
        for (name, endpoints) in [("s", first), ("p", second)] {
            if !endpoints.is_empty() || random.percent(20) {
                slices.push(slice(service, name, family, random.one_of(&[8080, 9090]), endpoints));
            }
        }
    }
    slices
}

/// A server with words for [`endpoint`]. `hints` is the same for all endpoints of a Service.
fn random_endpoint(random: &mut Random, server: &str, hints: usize) -> String {
    let mut words = vec![server.to_owned()];
    words.push(random.one_of(&["", "", "ready", "ready", "unready", "draining", "gone", "published"]).into());
    if random.percent(10) {
        words.push("nowhere".into());
    }
    let missing = random.percent(10);
    match hints {
        0 | 1 if !missing => words.push(random.one_of(&["zone=z", "zone=z", "zone=y"]).into()),
        2 if !missing => words.push(random.one_of(&["node=n", "node=m"]).into()),
        _ => {}
    }
    words.join(" ")
}
