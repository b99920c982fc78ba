//! Debian unstable's nft lists all rules that an agent writes. An administrator's nft may be newer than the one of the node's
//! image, and one table that it cannot read hides the others from it.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use podwire_runtime_tests::newer_nft;
use podwire_tests::podwire;
use serde_json::{json, Value};

/// A lab that is removed when this value is dropped.
struct Lab {
    name: String,
    files: PathBuf,
}

impl Lab {
    fn up(network: &str) -> Lab {
        let name = format!("nft-{network}-{}", std::process::id());
        let files = std::env::temp_dir().join(&name);
        fs::create_dir_all(&files).expect("a folder");
        fs::write(files.join("objects.json"), objects().to_string()).expect("a file");
        let lab = Lab { name, files };
        let files = lab.files.display().to_string();
        lab.run("up", &["--cni-network", network, "--policies", &files, "--services", &files]);
        lab
    }

    fn run(&self, verb: &str, words: &[&str]) -> String {
        let done = Command::new(podwire())
            .args(["lab", verb, "--name", &self.name])
            .args(words)
            .output()
            .expect("podwire");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(done.status.success(), "{verb} {words:?}: {}{}", text(&done.stdout), text(&done.stderr));
        text(&done.stdout)
    }

    /// What a shell script prints on the first node.
    fn on_node(&self, script: &str) -> String {
        self.run("exec", &["n1", "--", "sh", "-c", script])
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        drop(Command::new(podwire()).args(["lab", "down", "--name", &self.name]).output());
        drop(fs::remove_dir_all(&self.files));
    }
}

/// A pod, a policy in both directions, and Services of every kind.
fn objects() -> Value {
    let service = |name: &str, app: &str, spec: Value| {
        let mut all = json!({"selector": {"app": app}, "ports": [
            {"name": "tcp", "port": 80}, {"name": "udp", "port": 81, "protocol": "UDP"}, {"name": "sctp", "port": 82, "protocol": "SCTP"},
        ]});
        all.as_object_mut().expect("a spec").extend(spec.as_object().expect("a spec").clone());
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default"}, "spec": all})
    };
    let peers =
        json!([{"podSelector": {}}, {"ipBlock": {"cidr": "192.0.2.0/24", "except": ["192.0.2.7/32"]}}]);
    let mut balanced = service(
        "balanced",
        "web",
        json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "externalIPs": ["198.51.100.9"],
            "loadBalancerSourceRanges": ["192.0.2.0/24"]}),
    );
    balanced["status"] = json!({"loadBalancer": {"ingress": [{"ip": "198.51.100.10"}]}});
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "default", "labels": {"app": "web"}},
            "spec": {"containers": [{"name": "web", "image": "web"}]}},
        {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "all", "namespace": "default"},
            "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"],
                "ingress": [{"from": peers, "ports": [{"port": 1, "endPort": 9}]}], "egress": [{"to": peers}]}},
        service("sticky", "web", json!({"sessionAffinity": "ClientIP", "ipFamilyPolicy": "RequireDualStack"})),
        service("empty", "nobody", json!({"internalTrafficPolicy": "Local"})),
        balanced,
    ]})
}

#[test]
fn a_newer_nft_lists_what_agents_write() {
    let Some(nft) = newer_nft() else { return };
    for network in ["flannel", "calico"] {
        let lab = Lab::up(network);
        let older = lab.on_node("nft -j list ruleset");
        let newer = lab.on_node(&format!("{nft} -j list ruleset"));
        let count = |text: &str| -> usize {
            serde_json::from_str::<Value>(text).expect("JSON")["nftables"].as_array().expect("a list").len()
        };
        assert_eq!(count(&newer), count(&older), "{network}: objects");
        let said = lab.on_node(&format!("{nft} list ruleset 2>&1"));
        let tables = lab.on_node("nft list tables");
        for table in tables.lines() {
            assert!(said.lines().any(|line| line == format!("{table} {{")), "{network}: {table}");
        }
        for table in ["inet podwire_services", "inet podwire_policy", "inet podwire_tunnel"] {
            assert!(tables.contains(table), "{network}: {table}");
        }
        assert!(!said.contains("XT ") && !said.to_lowercase().contains("warning"), "{said}");
    }
}
