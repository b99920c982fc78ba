//! Events of the API server that concern no policy. The server is a stand-in, NOT a real one. Needs root.

use std::future::Future;
use std::time::{Duration, Instant};

use podwire_kubernetes::ClientOptions;
use podwire_netlink::sys;
use podwire_policy_agent::{PolicyAgent, PolicyAgentOptions, PolicyStatus, Source};
use podwire_test_servers::StandInApiServer;
use serde_json::{json, Value};

const TIMEOUT: Duration = Duration::from_secs(20);
const HEARTBEATS: u64 = 20;

/// Runs the test in a thread with a fresh network namespace.
fn on_node<T: Future<Output = ()>>(test: impl FnOnce() -> T + Send + 'static) {
    assert_eq!(sys::user_id(), 0, "this test needs root: it makes a network namespace");
    let inside = move || {
        sys::new_network_namespace().expect("a new network namespace");
        let up = std::process::Command::new("ip").args(["link", "set", "lo", "up"]).status();
        assert!(up.expect("ip").success());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(test());
    };
    if let Err(panic) = std::thread::spawn(inside).join() {
        std::panic::resume_unwind(panic);
    }
}

/// What policies depend on: a label and an address of a node, and labels of a pod and of a namespace.
#[derive(Clone, Copy, Debug)]
struct Cluster {
    zone: &'static str,
    address: &'static str,
    app: &'static str,
    team: &'static str,
}

impl Cluster {
    /// Sends all objects. `beat` is the number of the report, on which no policy depends.
    fn put(self, server: &StandInApiServer, beat: u64) {
        let (Cluster { zone, address, app, team }, beat) = (self, beat.to_string());
        let images: Vec<Value> = (0..50).map(|i| json!({"names": [format!("registry/{i}")]})).collect();
        let node = json!({
            "metadata": {"name": "n2", "labels": {"zone": zone}, "annotations": {"beat": beat}},
            "status": {
                "addresses": [{"type": "InternalIP", "address": address}], "images": images,
                "conditions": [{"type": "Ready", "lastHeartbeatTime": beat}],
            },
        });
        let pod = json!({
            "metadata": {"name": "p", "namespace": "shop", "labels": {"app": app}},
            "spec": {"nodeName": "n2", "containers": [{"name": "c"}]},
            "status": {
                "phase": "Running", "podIPs": [{"ip": "10.244.2.2"}], "podIP": "10.244.2.2",
                "conditions": [{"type": "Ready", "lastProbeTime": beat}],
            },
        });
        let metadata = json!({"name": "shop", "labels": {"team": team}, "annotations": {"beat": beat}});
        server.put_object("/api/v1/nodes", node);
        server.put_object("/api/v1/pods", pod);
        server.put_object("/api/v1/namespaces", json!({"metadata": metadata}));
    }
}

async fn until(agent: &PolicyAgent, what: &str, condition: impl Fn(&PolicyStatus) -> bool) -> PolicyStatus {
    let end = Instant::now() + TIMEOUT;
    loop {
        let status = agent.status();
        if condition(&status) {
            return status;
        }
        assert!(Instant::now() < end, "{what}: {status:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn heartbeats_cause_no_reconcile() {
    on_node(|| async {
        let first = Cluster { zone: "a", address: "192.0.2.2", app: "a", team: "a" };
        let zone = Cluster { zone: "b", ..first };
        let address = Cluster { address: "192.0.2.3", ..zone };
        let app = Cluster { app: "b", ..address };
        let team = Cluster { team: "b", ..app };

        let server = StandInApiServer::start().await;
        let policy = json!({"metadata": {"name": "n", "namespace": "shop"}, "spec": {"podSelector": {}}});
        server.put_object("/apis/networking.k8s.io/v1/networkpolicies", policy);
        let spec = json!({"tier": "Admin", "priority": 1, "subject": {"namespaces": {}}});
        let policy = json!({"metadata": {"name": "c"}, "spec": spec});
        server.put_object("/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies", policy);
        first.put(&server, 0);
        let options = ClientOptions { api_url: Some(server.url.clone()), ..ClientOptions::default() };
        let options_of_agent =
            PolicyAgentOptions { node_name: "n1".into(), lists_pods: true, ..PolicyAgentOptions::default() };
        let agent = PolicyAgent::start(options_of_agent).expect("the policy agent");
        let watch = tokio::spawn(Source::Kubernetes(options).watch(agent.clone()));
        until(&agent, "policies are enforced", |status| status.enforced && status.policies == 2).await;

        for pair in [first, zone, address, app, team].windows(2) {
            let (old, new) = (pair[0], pair[1]);
            let before = agent.status().reconciles;
            for beat in 1..=HEARTBEATS {
                old.put(&server, beat);
                // A burst would be one reconcile.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let quiet = agent.status().reconciles;
            new.put(&server, HEARTBEATS);
            let after = until(&agent, "a change is a reconcile", |status| status.reconciles > quiet).await;
            // One more may be a periodic one.
            let count = after.reconciles - before;
            assert!(count <= 2, "{new:?} after {HEARTBEATS} heartbeats: {count} reconciles");
        }
        watch.abort();
    });
}
