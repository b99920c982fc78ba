//! Invalid input in the source: the agent reports it, keeps what works, and retries.

use podwire_tests::Process;
use serde_json::json;

use super::stage::{net_conf, Stage, Store};

const SUBNETS: &str = "/coreos.com/network/subnets";

fn is_unreachable(stage: &Stage, number: u8, words: &[&str]) -> bool {
    let text = stage.status(number)["unreachable"].to_string();
    words.iter().all(|word| text.contains(word))
}

#[test]
fn invalid_keys_and_overlapping_subnets_do_not_affect_other_nodes() {
    let mut stage = Stage::ready(Store::Etcd, json!({"Type": "vxlan"}));
    let lost = stage.lost_while(1, 3, |stage| {
        stage.etcdctl(&format!("put {SUBNETS}/10.244.250.0-24 '{{this is no JSON'"));
        stage.etcdctl(&format!("put {SUBNETS}/no-subnet-at-all '{{}}'"));
        stage.wait_until("both are reported", |stage| {
            is_unreachable(stage, 1, &["10.244.250.0-24"]) && is_unreachable(stage, 1, &["no-subnet-at-all"])
        });
        // A key that covers the whole network.
        let value = r#"{"PublicIP":"192.168.10.99","PublicIPv6":"fd10::99","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:99"}}"#;
        stage.etcdctl(&format!("put {SUBNETS}/10.244.0.0-16 '{value}'"));
        stage.wait_until("the overlapping key is reported", |stage| is_unreachable(stage, 1, &["10.244.0.0-16"]));
    });
    assert!(lost.is_empty(), "{lost:?}");
    stage.assert_model_holds();
    stage.etcdctl(&format!("del {SUBNETS}/10.244.0.0-16"));
    stage.wait_until("the deleted key is no longer reported", |stage| {
        !is_unreachable(stage, 1, &["10.244.0.0-16"])
    });
}

#[test]
fn the_agent_lists_again_after_etcd_compacted_its_history() {
    let mut stage = Stage::ready(Store::Etcd, json!({"Type": "vxlan"}));
    let agent = stage.nodes[0].agent.as_ref().expect("the agent").id().to_string();
    let signal = |what: &str| {
        let sent = std::process::Command::new("kill").args([what, &agent]).status();
        assert!(sent.expect("kill").success());
    };
    // The agent is stopped while a node registers and etcd compacts its history. When the agent continues, its
    // connection is closed.
    signal("-STOP");
    let value = r#"{"PublicIP":"192.168.10.99","PublicIPv6":"fd10::99","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:99"},"BackendV6Data":{"VNI":1,"VtepMAC":"02:00:00:00:00:98"}}"#;
    stage.etcdctl(&format!("put '{SUBNETS}/10.244.251.0-24&fd00:244:0:fb::-64' '{value}'"));
    stage.etcdctl("put /unrelated 1");
    let last = stage.etcdctl("get /unrelated -w json | grep -o '\"revision\":[0-9]*' | grep -o '[0-9]*'");
    stage.etcdctl(&format!("compact --physical {}", last.trim()));
    stage.etcd = None;
    stage.start_etcd();
    stage.wait_until("etcd is back", |stage| {
        stage.router.can("ETCDCTL_API=3 etcdctl --endpoints http://192.168.10.1:2379 endpoint health")
    });
    signal("-CONT");
    stage.wait_until("n1 knows the node that came meanwhile", |stage| {
        stage.node(1).can("ip route show proto 112 | grep -q 10.244.251.0/24")
    });
    stage.assert_model_holds();
}

#[test]
fn a_pool_that_is_too_small_leaves_the_last_node_waiting_until_it_grows() {
    let small = json!({"Network": "10.244.0.0/16", "SubnetMin": "10.244.1.0", "SubnetMax": "10.244.1.0", "Backend": {"Type": "vxlan"}});
    let mut stage = Stage::new(Store::Etcd, &small);
    stage.start_agent(1, &[]);
    stage.wait_ready(1);
    stage.start_agent(2, &[]);
    stage.wait_until("the full pool is reported", |stage| {
        stage.status(2)["problems"].to_string().contains("out of subnets")
    });
    assert!(!stage.node(2).can("test -e /run/cni-conf/10-podwire.conflist"));
    assert_eq!(stage.status(1)["phase"], "ready");
    let large = json!({"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}});
    stage.etcdctl(&format!("put /coreos.com/network/config '{large}'"));
    stage.wait_ready(2);
}

#[test]
fn an_etcd_with_an_untrusted_certificate_is_not_used() {
    let mut stage = Stage::new(Store::Etcd, &net_conf(json!({"Type": "vxlan"})));
    let folder = stage.folder.clone();
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    stage.router.sh(&format!(
        "cd {} && exec 2>/dev/null; for ca in ca stranger; do openssl req -x509 {key} -keyout $ca.key -out $ca.pem -days 2 -subj /CN=$ca; done \
         && echo subjectAltName=IP:192.168.10.1 > server.ext && openssl req {key} -keyout server.key -out server.csr -subj /CN=server \
         && openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile server.ext -out server.pem \
         && cp stranger.pem trusted.pem",
        folder.display()
    ));
    let mut etcd = stage.router.command("etcd");
    let path = |name: &str| folder.join(name).display().to_string();
    let url = "https://192.168.10.1:2479";
    etcd.args(["--data-dir", &path("secured"), "--unsafe-no-fsync", "--logger", "zap"]);
    etcd.args([
        "--listen-client-urls",
        url,
        "--advertise-client-urls",
        url,
        "--listen-peer-urls",
        "http://127.0.0.1:2480",
    ]);
    etcd.args(["--cert-file", &path("server.pem"), "--key-file", &path("server.key")]);
    stage.router.accompany(Process::start(etcd));
    let conf = json!({"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}});
    let put = format!(
        "ETCDCTL_API=3 etcdctl --endpoints {url} --cacert {} put /coreos.com/network/config '{conf}'",
        path("ca.pem")
    );
    stage.wait_until("etcd takes the config", |stage| stage.router.can(&put));

    stage.start_agent(1, &["--etcd-endpoints", url, "--etcd-cafile", &path("trusted.pem")]);
    stage.wait_until("the invalid certificate is reported", |stage| {
        stage.status(1)["problems"].to_string().contains("invalid peer certificate")
    });
    // The right CA, in the same file: the agent needs no restart.
    stage.router.sh(&format!("cp {} {}", path("ca.pem"), path("trusted.pem")));
    stage.wait_ready(1);
}
