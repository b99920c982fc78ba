//! The thread with real packets: it waits for its source, follows it, and repairs.

use std::time::{Duration, Instant};

use podwire_services::{Kind, ObjectName, ServicesAgent, ServicesOptions, ServicesStatus, Update};
use serde_json::{json, Value};

use crate::cluster::{cidr, node, slices, web};
use crate::testbed::{Outcome, Testbed};

/// The thread on a testbed.
pub struct Running {
    pub testbed: Testbed,
    pub agent: ServicesAgent,
}

impl Running {
    pub fn start(options: ServicesOptions) -> Running {
        Running::on(Testbed::new(2), options)
    }

    pub fn on(testbed: Testbed, options: ServicesOptions) -> Running {
        let agent = testbed.node.inside(|| ServicesAgent::start(options).unwrap());
        agent.set_pod_networks(vec!["10.1.0.0/24".parse().unwrap(), "fd00:1::/64".parse().unwrap()]).unwrap();
        Running { testbed, agent }
    }

    pub fn list(&self, kind: Kind, objects: &[Value]) {
        self.agent.update(Update::Listed(kind, objects.to_vec())).unwrap();
    }

    /// Waits for a status.
    pub fn wait(&self, wanted: impl Fn(&ServicesStatus) -> bool) -> ServicesStatus {
        let begin = Instant::now();
        loop {
            let status = self.agent.status();
            if wanted(&status) {
                return status;
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "{status:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The server that a pod reaches at a frontend, or the outcome.
    fn server(&self, target: &str) -> String {
        match self.testbed.pods[1].ask(target) {
            Outcome::Reached { server, .. } => server,
            other => format!("{other:?}"),
        }
    }
}

#[test]
fn the_thread_follows_its_source_and_repairs_the_table() {
    let running = Running::start(ServicesOptions { node_name: "n".into(), ..ServicesOptions::default() });
    running.list(Kind::Service, &[web(json!({ "type": "NodePort" }))]);
    running.list(Kind::Node, &[node()]);
    running.list(Kind::ServiceCidr, &[cidr()]);
    // The slices are not known yet: the Service is not rejected.
    std::thread::sleep(Duration::from_millis(200));
    assert!(!running.agent.status().synced);
    assert_eq!(running.testbed.node.run("nft list tables"), "");
    running.list(Kind::EndpointSlice, &slices(&["1"]));
    let status = running.wait(|status| status.synced);
    assert_eq!((status.frontends, &status.problems[..], status.repairs), (8, &[][..], 0));
    assert_eq!(running.server("tcp 10.96.0.1:80"), "1");
    slices(&["r"]).into_iter().for_each(|slice| running.agent.update(Update::Changed(slice)).unwrap());
    running.wait(|status| status.changes > 1);
    running.wait(|_| {
        running.server("udp [fd00:96::1]:80") == "r" && running.server("tcp 192.0.2.1:30080") == "r"
    });
    // Another table is no cause to reconcile, this one is.
    running.testbed.node.run("nft add table inet other");
    let before = running.agent.status();
    running.testbed.node.run("nft flush map inet podwire_services frontends_4");
    let status = running.wait(|status| status.repairs > 0);
    assert_eq!(status.reconciles, before.reconciles + 1, "{before:?} {status:?}");
    assert_eq!(running.server("tcp 10.96.0.1:80"), "r");
    // The name of the object is in the status.
    running.agent.update(Update::Changed(web(json!({ "externalIPs": ["127.0.0.1"] })))).unwrap();
    let status = running.wait(|status| !status.problems.is_empty());
    assert_eq!(
        status.problems,
        ["Service x/web: externalIPs: \"127.0.0.1\" is a loopback address; it is not served"]
    );
    let name = ObjectName { namespace: "x".into(), name: "web".into() };
    running.agent.update(Update::Deleted(Kind::Service, name)).unwrap();
    running.wait(|status| status.frontends == 0);
}

#[test]
fn node_ports_follow_the_addresses_of_the_node() {
    let networks = ["192.0.2.0/24", "203.0.113.0/24", "fd00:9::/64"].map(|net| net.parse().unwrap());
    let running = Running::start(ServicesOptions {
        node_name: "n".into(),
        node_port_networks: Some(networks.into()),
        ..ServicesOptions::default()
    });
    running.list(Kind::Node, &[]);
    running.list(Kind::ServiceCidr, &[]);
    running.list(Kind::EndpointSlice, &slices(&["1"]));
    running.list(Kind::Service, &[web(json!({ "type": "NodePort" }))]);
    let status = running.wait(|status| status.synced);
    assert_eq!(status.frontends, 8);
    running.testbed.node.run("ip addr add 203.0.113.7/32 dev lo");
    running.wait(|status| status.frontends == 10);
    assert_eq!(running.server("tcp 203.0.113.7:30080"), "1");
    running.testbed.node.run("ip addr del 203.0.113.7/32 dev lo");
    running.wait(|status| status.frontends == 8);
}
