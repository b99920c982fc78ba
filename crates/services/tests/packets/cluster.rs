//! A Service on the testbed, and what its clients see.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use podwire_services::dataplane::{difference, installed, Change, Nftables};
use podwire_services::{
    explain, Admission, Changes, Client, Compiler, Desired, Fate, Frontend, NodeInput, Protocol, Refusal,
    Target,
};
use serde_json::{json, Value};

use crate::testbed::{run, Namespace, Outcome, Testbed};

/// A Service `web` with an address of both families.
pub fn web(more: Value) -> Value {
    let mut spec = json!({ "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00:96::1"], "ports": [
        { "name": "t", "port": 80, "nodePort": 30080 }, { "name": "u", "port": 80, "nodePort": 30080, "protocol": "UDP" }] });
    more.as_object().unwrap().iter().for_each(|(key, value)| spec[key] = value.clone());
    json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "namespace": "x", "name": "web" }, "spec": spec })
}

/// Slices of both families: `1` is a pod of this node, `r` the remote pod, `n` this node.
pub fn slices(endpoints: &[&str]) -> Vec<Value> {
    let of_family = |family: &str| {
        let endpoint = |name: &&str| {
            let (address, node) = match (*name, family) {
                ("r", "IPv4") => ("10.2.0.9".to_owned(), "m"),
                ("r", _) => ("fd00:2::9".to_owned(), "m"),
                ("n", "IPv4") => ("192.0.2.1".to_owned(), "n"),
                ("n", _) => ("fd00:9::1".to_owned(), "n"),
                (number, "IPv4") => (format!("10.1.0.{number}"), "n"),
                (number, _) => (format!("fd00:1::{number}"), "n"),
            };
            json!({ "addresses": [address], "nodeName": node })
        };
        json!({ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family,
            "metadata": { "namespace": "x", "name": family, "labels": { "kubernetes.io/service-name": "web" } },
            "ports": [{ "name": "t", "port": 8080 }, { "name": "u", "port": 8080, "protocol": "UDP" }],
            "endpoints": endpoints.iter().map(endpoint).collect::<Vec<_>>() })
    };
    vec![of_family("IPv4"), of_family("IPv6")]
}

pub fn node() -> Value {
    json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n" }, "status": { "addresses": [
        { "type": "InternalIP", "address": "192.0.2.1" }, { "type": "InternalIP", "address": "fd00:9::1" }] } })
}

pub fn cidr() -> Value {
    json!({ "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": { "name": "kubernetes" },
        "spec": { "cidrs": ["10.96.0.0/16", "fd00:96::/112"] } })
}

/// The Service `web` with the load balancer's addresses 198.51.100.8 and fd00:7::8, open to these ranges.
pub fn balanced(ranges: &[&str]) -> Value {
    let mut service = web(json!({ "type": "LoadBalancer", "loadBalancerSourceRanges": ranges }));
    service["status"]["loadBalancer"]["ingress"] = json!([{ "ip": "198.51.100.8" }, { "ip": "fd00:7::8" }]);
    service
}

/// The desired state for one Service.
pub fn state(service: Value, endpoints: &[&str]) -> Desired {
    state_with_slices(service, slices(endpoints))
}

/// The same with these slices.
pub fn state_with_slices(service: Value, slices: Vec<Value>) -> Desired {
    let pod_networks = ["10.1.0.0/24", "fd00:1::/64"].map(|net| net.parse().unwrap()).into();
    let mut objects = Compiler::new(NodeInput { name: "n".into(), pod_networks, ..NodeInput::default() });
    [service, node(), cidr()].into_iter().chain(slices).for_each(|object| objects.put(object));
    let state = objects.desired().clone();
    assert!(state.problems.is_empty(), "{:?}", state.problems);
    state
}

/// A testbed with its Services.
pub struct Cluster {
    pub testbed: Testbed,
    pub nft: Nftables,
}

impl Cluster {
    pub fn new(pods: u8) -> Cluster {
        Cluster::on(Testbed::new(pods))
    }

    pub fn on(testbed: Testbed) -> Cluster {
        let nft = testbed.node.inside(|| Nftables::open().unwrap());
        Cluster { testbed, nft }
    }

    /// Applies a Service with endpoints. The second apply must change nothing, a new process must find the same, nft must be
    /// able to list it, and what is read back must be the same.
    pub fn apply(&mut self, service: Value, endpoints: &[&str]) -> Change {
        let state = state(service, endpoints);
        let nft = &mut self.nft;
        self.testbed.node.inside(|| {
            let change = nft.apply(&state, &Changes::All).unwrap();
            assert!(nft.apply(&state, &Changes::All).unwrap().is_empty());
            let again = Nftables::open().unwrap().apply(&state, &Changes::All).unwrap();
            assert!(again.is_empty(), "{again:?}\n{}", run("nft list table inet podwire_services"));
            run("nft list ruleset && nft -j list ruleset");
            let installed = installed().unwrap().unwrap();
            assert_eq!(difference(&installed, &state), None, "{installed:?}");
            let of_node = |state: &Desired| {
                let Desired { cluster_ips, service_cidrs, pod_networks, local_endpoint_ips, .. } =
                    state.clone();
                (cluster_ips, service_cidrs, pod_networks, local_endpoint_ips)
            };
            assert_eq!(of_node(&installed), of_node(&state));
            change
        })
    }

    /// Compares what clients see with what is expected. A row: client, target, outcome. The client is a pod's number, `n`
    /// for the node or `o` for the host outside; the target is `cluster`, `node` or `external`, and each is tried with
    /// TCP and UDP over both families. The outcome is `silence`, `refused`, or the server and `itself` or `node`: whose
    /// address the server saw.
    pub fn check(&self, rows: &[(&str, &str, &str)]) {
        let mut failures = Vec::new();
        for (client, target, expected) in rows {
            for family in [4, 6] {
                for protocol in ["tcp", "udp"] {
                    let found =
                        self.ask(client, &format!("{protocol} {}", address(target, family)), expected);
                    let explained = self.explained(client, protocol, address(target, family));
                    if !explained.iter().any(|text| text == expected) {
                        failures.push(format!(
                            "{client} {protocol}{family} {target}: explained as {explained:?}"
                        ));
                    }
                    if found != *expected {
                        failures
                            .push(format!("{client} {protocol}{family} {target}: {found}, not {expected}"));
                    }
                }
            }
        }
        let rules = || {
            self.testbed.node.run("nft list table inet podwire_services; cat /proc/net/nf_conntrack || true")
        };
        assert!(failures.is_empty(), "{}\n{}", failures.join("\n"), rules());
    }

    /// What the explanation of the Services in the kernel says, as the outcomes of [`check`](Cluster::check): one for each
    /// possible endpoint.
    fn explained(&self, client: &str, protocol: &str, target: &str) -> Vec<String> {
        let target: SocketAddr = target.parse().unwrap();
        let frontend =
            Frontend { ip: target.ip(), protocol: Protocol::named(protocol).unwrap(), port: target.port() };
        let node: BTreeSet<IpAddr> = addresses(&self.testbed.node);
        let source = self.client(client).inside(|| source(target));
        let installed = self.testbed.node.inside(|| installed().unwrap().unwrap());
        let client = Client::Address(source);
        let explanation = explain(&installed, &node, client, &frontend);
        match (explanation.admission, explanation.fate) {
            (Admission::Denied(_), _) | (_, Fate::Refused(Refusal::Drop, _)) => vec!["silence".into()],
            (_, Fate::Refused(Refusal::Reject, _)) => vec!["refused".into()],
            (_, Fate::Untouched) => vec!["untouched".into()],
            (_, Fate::Forwarded { targets, .. }) => {
                let text = |target: &Target| {
                    let is_node = client_is_node(&node, client);
                    let whose = if target.masquerade.is_some() && !is_node { "node" } else { "itself" };
                    format!("{} {whose}", server(target.endpoint.ip()))
                };
                targets.iter().map(text).collect()
            }
        }
    }

    /// The servers that respond to many TCP connections over IPv4 and IPv6.
    pub fn servers(&self, client: &str, target: &str, times: usize) -> BTreeSet<String> {
        let of_family =
            |family| self.client(client).servers(&format!("tcp {}", address(target, family)), times);
        let [four, six] = [4, 6].map(of_family);
        assert_eq!(four, six);
        four
    }

    pub fn client(&self, name: &str) -> &Namespace {
        match name {
            "n" => &self.testbed.node,
            "o" => &self.testbed.outside,
            "r" => &self.testbed.remote,
            number => &self.testbed.pods[number.parse::<usize>().unwrap() - 1],
        }
    }

    fn ask(&self, client: &str, target: &str, expected: &str) -> String {
        let (node, namespace) = (&self.testbed.node, self.client(client));
        let outcome =
            if expected == "silence" { namespace.ask_briefly(target) } else { namespace.ask(target) };
        let Outcome::Reached { server, source } = outcome else { return format!("{outcome:?}") };
        let itself = namespace.run("ip -o addr").contains(&format!(" {source}/"));
        let translated = node.run("ip -o addr").contains(&format!(" {source}/"));
        let whose = match (itself, translated) {
            (true, _) => "itself".to_owned(),
            (false, true) => "node".to_owned(),
            (false, false) => source.to_string(),
        };
        format!("{server} {whose}")
    }
}

/// The addresses of a namespace that other hosts can use.
fn addresses(namespace: &Namespace) -> BTreeSet<IpAddr> {
    let list = namespace.run("ip -o addr show scope global");
    let words = list.lines().filter_map(|line| line.split_whitespace().nth(3)?.split('/').next());
    words.map(|ip| ip.parse().unwrap()).collect()
}

/// The address that the kernel chooses for a packet to the target.
fn source(target: SocketAddr) -> IpAddr {
    let any = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).unwrap();
    socket.connect(target).unwrap();
    socket.local_addr().unwrap().ip()
}

/// A process of the node has an address of the node, whether or not it is rewritten.
fn client_is_node(node: &BTreeSet<IpAddr>, client: Client) -> bool {
    matches!(client, Client::Address(ip) if node.contains(&ip))
}

/// The name of the server at an address, as in [`slices`].
fn server(ip: IpAddr) -> String {
    match ip.to_string().as_str() {
        "10.2.0.9" | "fd00:2::9" => "r".into(),
        "192.0.2.1" | "fd00:9::1" => "n".into(),
        pod => pod.rsplit(['.', ':']).next().unwrap().into(),
    }
}

pub fn address(target: &str, family: u8) -> &'static str {
    match (target, family) {
        ("cluster", 4) => "10.96.0.1:80",
        ("cluster", _) => "[fd00:96::1]:80",
        ("other port", 4) => "10.96.0.1:81",
        ("other port", _) => "[fd00:96::1]:81",
        ("unused", 4) => "10.96.0.2:80",
        ("unused", _) => "[fd00:96::2]:80",
        ("node", 4) => "192.0.2.1:30080",
        ("node", _) => "[fd00:9::1]:30080",
        ("external", 4) => "198.51.100.7:80",
        ("external", _) => "[fd00:7::7]:80",
        ("balancer", 4) => "198.51.100.8:80",
        ("balancer", _) => "[fd00:7::8]:80",
        (other, _) => panic!("{other}"),
    }
}
