//! The cost of compiling: `cargo run --release -p podwire-policy --example cost -- POLICIES PODS`.

use std::time::{Duration, Instant};

use podwire_policy::{Compiler, Snapshot};
use serde_json::json;

fn main() {
    let mut arguments = std::env::args().skip(1).filter_map(|argument| argument.parse::<usize>().ok());
    let (policies, pods) = (arguments.next().unwrap_or(10_000), arguments.next().unwrap_or(500));
    let mut snapshot = Snapshot::new();
    let add = |snapshot: &mut Snapshot, object| {
        snapshot.add(object).unwrap_or_else(|error| panic!("{error}"));
    };
    for number in 0..pods {
        add(
            &mut snapshot,
            json!({ "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": format!("p{number}"), "namespace": format!("n{}", number % 50), "labels": { "app": format!("a{}", number % 7) } },
            "spec": { "nodeName": "here" },
            "status": { "podIPs": [{ "ip": format!("10.{}.{}.{}", 1 + number / 60_000, number / 250 % 250, 1 + number % 250) }] } }),
        );
    }
    for number in 0..policies {
        add(
            &mut snapshot,
            json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": { "name": format!("r{number}"), "namespace": format!("n{}", number % 50) },
            "spec": { "podSelector": { "matchLabels": { "app": format!("a{}", number % 11) } },
                "ingress": [{ "from": [{ "podSelector": { "matchLabels": { "app": format!("a{}", number % 13) } } }],
                              "ports": [{ "port": 1 + number % 9000 }] }] } }),
        );
    }
    for _ in 0..3 {
        let start = Instant::now();
        let mut compiler = Compiler::new(&snapshot, Some("here"));
        let program = compiler.program();
        let (whole, chains) = (start.elapsed(), program.chains.len());
        let rules: usize = program.stages.values().map(|stage| stage.rules.len()).sum();
        let mut pod = snapshot.pods[0].clone();
        pod.metadata.labels.insert("app".into(), "other".into());
        let label = timed(|| {
            compiler.set_pod(&pod.full_name(), Some(pod.clone()));
            compiler.program();
        });
        let mut policy = snapshot.network_policies[0].clone();
        policy.spec.ingress.clear();
        let changed = timed(|| {
            let name = format!("{}/{}", policy.metadata.namespace, policy.metadata.name);
            compiler.set_network_policy(&name, Some(&policy));
            compiler.program();
        });
        println!(
            "{policies} policies, {pods} pods: {whole:?} from scratch, {chains} chains, {rules} rules; a label {label:?}, a policy {changed:?}"
        );
    }
}

fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}
