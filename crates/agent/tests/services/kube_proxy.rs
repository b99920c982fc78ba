//! On a node where kube-proxy runs or ran, and after an agent that served Services.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;

use podwire_agent::{flannel, ServicesSettings};
use podwire_policy_agent::Source;
use serde_json::Value;

use super::testbed::{nodes, on_node, run, runtime, settings, wait, with_agent};

const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: web}
spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}
";

fn services(dir: &Path, cleanup_kube_proxy: bool) -> Option<ServicesSettings> {
    let files = dir.join("services");
    std::fs::write(files.join("web.yaml"), SERVICE).unwrap();
    let source = Source::Files(files);
    Some(ServicesSettings { source, node_port_networks: None, healthz: None, cleanup_kube_proxy })
}

fn tables() -> String {
    run("nft list tables")
}

#[test]
fn the_agent_does_not_start_beside_kube_proxy() {
    on_node("running", |dir| {
        let listener = TcpListener::bind("127.0.0.1:10249").unwrap();
        std::thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                let _ = stream.read(&mut [0; 1000]);
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nipvs");
            }
        });
        run("nft add table ip kube-proxy");
        let agent = async { flannel::run(settings(dir, services(dir, true)), nodes(dir)).await };
        let error = runtime().block_on(agent).unwrap_err().to_string();
        for part in
            ["kube-proxy runs on this node", "127.0.0.1:10249", "\"ipvs\"", "migration-from-kube-proxy"]
        {
            assert!(error.contains(part), "{error}");
        }
        assert_eq!(tables(), "table ip kube-proxy\n");
        // An agent without Services does not mind.
        with_agent(dir, None, || drop(wait(|status| status["phase"] == "ready")));
    });
}

#[test]
fn leftovers_are_in_the_status_until_an_agent_removes_them() {
    on_node("leftovers", |dir| {
        run("nft add table ip kube-proxy; nft add table ip6 kube-proxy");
        let text = |status: &Value| status["problems"].to_string();
        with_agent(dir, services(dir, false), move || {
            let status = wait(|status| text(status).contains("kube-proxy"));
            for part in ["left table ip kube-proxy; table ip6 kube-proxy", "--cleanup-kube-proxy"] {
                assert!(text(&status).contains(part), "{status}");
            }
            // It is no reason to be unready.
            wait(|status| status["phase"] == "ready");
        });
        assert!(tables().contains("table ip kube-proxy"));
        with_agent(dir, services(dir, true), move || {
            wait(|status| {
                status["services"]["synced"] == true
                    && !tables().contains("kube-proxy")
                    && !text(status).contains("kube-proxy")
            });
        });
    });
}

#[test]
fn an_agent_without_services_removes_those_of_an_earlier_one() {
    on_node("removed", |dir| {
        let serve = || {
            with_agent(dir, services(dir, false), || {
                drop(wait(|status| status["services"]["synced"] == true))
            });
            // They stay when the agent ends.
            assert!(tables().contains("table inet podwire_services"));
        };
        serve();
        with_agent(dir, None, || drop(wait(|status| status["phase"] == "ready")));
        assert!(!tables().contains("podwire_services"), "{}", tables());
        serve();
        flannel::retire().unwrap();
        assert_eq!(tables(), "");
    });
}
