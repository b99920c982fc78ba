//! UDP clients that keep their port.

use std::net::UdpSocket;
use std::time::Duration;

use podwire_services::dataplane::StaleFlows;
use podwire_services::{Changes, Desired};
use serde_json::json;

use crate::cluster::{balanced, slices, state, state_with_slices, web, Cluster};

/// A client with one socket.
struct Client(UdpSocket);

impl Client {
    fn new(cluster: &Cluster, name: &str, target: &str) -> Client {
        let any = if target.contains('[') { "[::]:0" } else { "0.0.0.0:0" };
        let socket = cluster.client(name).inside(|| UdpSocket::bind(any).unwrap());
        socket.connect(target).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        Client(socket)
    }

    fn send(&self, text: &str) {
        self.0.send(text.as_bytes()).unwrap();
    }

    /// The server that responds, or the error.
    fn ask(&self) -> String {
        let mut buffer = [0; 100];
        match self.0.send(b"?").and_then(|_| self.0.recv(&mut buffer)) {
            Ok(length) => {
                String::from_utf8_lossy(&buffer[..length]).split(' ').next().unwrap_or_default().into()
            }
            Err(error) => format!("{:?}", error.kind()),
        }
    }
}

/// Applies a state and deletes stale flows.
fn apply(cluster: &mut Cluster, stale: &mut StaleFlows, state: Desired) -> usize {
    let nft = &mut cluster.nft;
    cluster.testbed.node.inside(|| {
        nft.apply(&state, &Changes::All).unwrap();
        let deleted = stale.delete(&state, &Changes::All).unwrap();
        assert_eq!(stale.delete(&state, &Changes::All).unwrap(), 0);
        deleted
    })
}

#[test]
fn flows_to_endpoints_that_are_gone_end_and_the_others_stay() {
    let mut cluster = Cluster::new(3);
    let mut stale = cluster.testbed.node.inside(|| StaleFlows::open().unwrap());
    let service = || web(json!({ "type": "NodePort" }));
    apply(&mut cluster, &mut stale, state(service(), &["1"]));
    let clients =
        [("3", "10.96.0.1:80"), ("3", "[fd00:96::1]:80"), ("o", "192.0.2.1:30080"), ("n", "10.96.0.1:80")]
            .map(|(name, target)| Client::new(&cluster, name, target));
    let ask = || clients.each_ref().map(Client::ask);
    let own_port = Client::new(&cluster, "3", "192.0.2.1:8080");
    assert_eq!((ask(), own_port.ask()), (["1"; 4].map(String::from), "n".into()));
    // Another endpoint, and a new agent: all flows stay.
    assert_eq!(apply(&mut cluster, &mut stale, state(service(), &["1", "2"])), 0);
    stale = cluster.testbed.node.inside(|| StaleFlows::open().unwrap());
    assert_eq!(apply(&mut cluster, &mut stale, state(service(), &["1", "2"])), 0);
    assert_eq!(ask(), ["1"; 4]);
    assert_eq!(apply(&mut cluster, &mut stale, state(service(), &["2"])), 4);
    assert_eq!((ask(), own_port.ask()), (["2"; 4].map(String::from), "n".into()));
    // The last endpoint goes, and comes back.
    assert_eq!(apply(&mut cluster, &mut stale, state(service(), &[])), 4);
    assert!(ask().iter().all(|outcome| outcome != "1" && outcome != "2"), "{:?}", ask());
    apply(&mut cluster, &mut stale, state(service(), &["1"]));
    // The refusal of an earlier datagram may still be reported.
    ask();
    assert_eq!(ask(), ["1"; 4]);
    // The Service is deleted.
    let mut other = service();
    (other["spec"]["clusterIP"], other["spec"]["clusterIPs"]) = ("10.96.0.9".into(), json!(["10.96.0.9"]));
    other["spec"]["ports"] = json!([{ "port": 1 }]);
    assert_eq!(apply(&mut cluster, &mut stale, state(other, &[])), 4);
    assert_eq!(own_port.ask(), "n");
}

/// The load balancer's addresses, and ranges that admit pod 3, or pod 3 and the host outside.
const BALANCER: [&str; 2] = ["198.51.100.8:80", "[fd00:7::8]:80"];
const POD: [&str; 2] = ["10.1.0.3/32", "fd00:1::3/128"];
const POD_AND_HOST: [&str; 4] = ["10.1.0.3/32", "fd00:1::3/128", "192.0.2.2/32", "fd00:9::2/128"];

#[test]
fn flows_of_clients_outside_of_narrower_source_ranges_end() {
    let mut cluster = Cluster::new(3);
    let mut stale = cluster.testbed.node.inside(|| StaleFlows::open().unwrap());
    let with = |ranges: &[&str]| state(balanced(ranges), &["1"]);
    apply(&mut cluster, &mut stale, with(&POD_AND_HOST));
    let of = |name: &str| BALANCER.map(|target| Client::new(&cluster, name, target));
    let (pod, host) = (of("3"), of("o"));
    // The ranges do not concern the cluster IP.
    let other = Client::new(&cluster, "2", "10.96.0.1:80");
    let ask = || [&pod, &host].map(|clients| clients.each_ref().map(Client::ask).join(" "));
    assert_eq!((ask(), other.ask()), (["1 1", "1 1"].map(String::from), "1".into()));
    assert_eq!(apply(&mut cluster, &mut stale, with(&POD)), 2);
    assert_eq!((ask(), other.ask()), (["1 1", "WouldBlock WouldBlock"].map(String::from), "1".into()));
    // Wider ranges end no flow.
    assert_eq!(apply(&mut cluster, &mut stale, with(&POD_AND_HOST)), 0);
    assert_eq!(ask(), ["1 1", "1 1"]);
    // The ranges became narrower while no agent ran.
    stale = cluster.testbed.node.inside(|| StaleFlows::open().unwrap());
    assert_eq!(apply(&mut cluster, &mut stale, with(&POD)), 2);
    assert_eq!(ask(), ["1 1", "WouldBlock WouldBlock"]);
}

#[test]
fn one_way_flows_end_with_the_source_ranges_that_admitted_them() {
    let mut cluster = Cluster::new(3);
    let mut stale = cluster.testbed.node.inside(|| StaleFlows::open().unwrap());
    // Port 9000 of pod 1 receives and never replies.
    let receivers = cluster.testbed.pods[0]
        .inside(|| ["10.1.0.1:9000", "[fd00:1::1]:9000"].map(|addr| UdpSocket::bind(addr).unwrap()));
    let with = |ranges: &[&str]| {
        let mut slices = slices(&["1"]);
        slices.iter_mut().for_each(|slice| slice["ports"][1]["port"] = 9000.into());
        state_with_slices(balanced(ranges), slices)
    };
    apply(&mut cluster, &mut stale, with(&POD_AND_HOST));
    let of = |name: &str| BALANCER.map(|target| Client::new(&cluster, name, target));
    let (pod, host) = (of("3"), of("o"));
    for receiver in 0..2 {
        host[receiver].send("host");
        assert_eq!(receive(&receivers[receiver], Duration::from_secs(10)).unwrap(), "host");
        pod[receiver].send("pod");
        assert_eq!(receive(&receivers[receiver], Duration::from_secs(10)).unwrap(), "pod");
    }
    assert_eq!(apply(&mut cluster, &mut stale, with(&POD)), 2);
    for receiver in 0..2 {
        host[receiver].send("host");
        pod[receiver].send("pod");
        assert_eq!(receive(&receivers[receiver], Duration::from_secs(10)).unwrap(), "pod");
        assert_eq!(receive(&receivers[receiver], Duration::from_secs(1)), None);
    }
}

/// The next datagram; `None` if none arrives in time.
fn receive(socket: &UdpSocket, timeout: Duration) -> Option<String> {
    let mut buffer = [0; 100];
    socket.set_read_timeout(Some(timeout)).unwrap();
    let length = socket.recv(&mut buffer).ok()?;
    Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
}
