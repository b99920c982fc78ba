//! UDP clients that keep their port.

use std::net::UdpSocket;
use std::time::Duration;

use podwire_services::dataplane::StaleFlows;
use podwire_services::{Changes, Desired};
use serde_json::json;

use crate::cluster::{state, web, Cluster};

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
