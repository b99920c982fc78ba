//! `podwire ipam` on a file, on a real etcd and on a real API server.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::process::Command;

use podwire_block_ipam::store::Store;
use podwire_block_ipam::timestamp::Timestamp;
use podwire_block_ipam::{AffinityOwner, Allocator, Request, Rules};
use podwire_store_etcd::{EtcdStore, TlsFiles};
use podwire_store_kubernetes::{ApiGroup, KubernetesStore};
use podwire_test_servers::{kubernetes_programs, Certificates, EtcdServer, KubeApiServer};
use serde_json::Value;

struct Outcome {
    stdout: String,
    stderr: String,
    code: i32,
}

/// Runs the program on a store. The store may be followed by options.
fn podwire(store: &str, line: &str) -> Outcome {
    let output = Command::new(env!("CARGO_BIN_EXE_podwire"))
        .arg("ipam")
        .args(line.split_whitespace())
        .arg("--store")
        .args(store.split_whitespace())
        .env_remove("ETCD_ENDPOINTS")
        .env_remove("CALICO_API_GROUP")
        .env("NO_COLOR", "1")
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Outcome { stdout: text(output.stdout), stderr: text(output.stderr), code: output.status.code().unwrap() }
}

fn ok(store: &str, line: &str) -> String {
    let outcome = podwire(store, line);
    assert_eq!(outcome.code, 0, "{line}: {}{}", outcome.stdout, outcome.stderr);
    outcome.stdout
}

fn json(store: &str, line: &str) -> Value {
    serde_json::from_str(&ok(store, &format!("{line} --json"))).unwrap()
}

/// Assigns an address, as an agent does.
fn assign(store: &dyn Store, node: &str, handle: &str) -> String {
    let allocator = Allocator::new(store, || Timestamp::from_unix_nanos(1_787_405_600_000_000_000));
    let given = allocator
        .assign(&Rules::load(store).unwrap(), &Request::new(AffinityOwner::host(node), handle))
        .unwrap();
    given.addresses[0].addr().to_string()
}

/// The same sequence of commands on every store.
fn run_commands(name: &str, open: &dyn Fn() -> Box<dyn Store>) {
    assert_eq!(
        ok(name, "pool pods 10.244.0.0/28 --block-size 30"),
        "created pods 10.244.0.0/28 with blocks of /30\n"
    );
    let overlapping = podwire(name, "pool more 10.244.0.0/16");
    assert!(
        overlapping.code == 1 && overlapping.stderr.contains("overlaps with pool pods"),
        "{}",
        overlapping.stderr
    );
    let ip = assign(&*open(), "node1", "net.a");
    assign(&*open(), "node1", "net.b");

    let shown = ok(name, "show --blocks");
    let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["ADDRESSES", "TOTAL", "IN", "USE", "RESERVED", "FREE"]);
    assert_eq!(lines[1], ["pods", "10.244.0.0/28", "16", "2", "(12%)", "0", "14", "(87%)"]);
    assert_eq!(lines[2][0], "host:node1");
    assert_eq!(json(name, "show")["pools"][0]["blocks"][0]["inUse"], 2);
    assert_eq!(ok(name, "show --borrowed"), "no borrowed addresses\n");
    assert_eq!(ok(name, &format!("show --ip {ip}")), format!("{ip} is in use by net.a\n  node: node1\n"));

    open()
        .create("/calico/ipam/v2/handle/net.orphan", br#"{"block":{"10.244.0.0/30":1},"deleted":false}"#)
        .unwrap();
    let checked = podwire(name, "check");
    assert!(
        checked.code == 1 && checked.stdout.contains("problem: handle net.orphan counts 1"),
        "{}",
        checked.stdout
    );
    assert!(ok(name, "check --repair").contains("repaired: handle net.orphan"));
    assert_eq!(json(name, "check")["problems"], serde_json::json!([]));

    let refused = podwire(name, &format!("release --ip {ip} --handle net.b"));
    assert!(
        refused.code == 1 && refused.stderr.contains("it belongs to net.a, not to net.b"),
        "{}",
        refused.stderr
    );
    assert_eq!(ok(name, &format!("release --ip {ip}")), format!("released {ip}\n"));
    assert_eq!(ok(name, &format!("release --ip {ip}")), "nothing was in use\n");
    assert_eq!(json(name, "release --handle net.b")["released"].as_array().unwrap().len(), 1);

    assert!(ok(name, "configure").contains("strict affinity: false"));
    let refused = podwire(name, "configure --max-blocks-per-host 3");
    assert!(
        refused.code == 1 && refused.stderr.contains("a limit of 3 blocks needs strict affinity"),
        "{}",
        refused.stderr
    );
    assert_eq!(json(name, "configure --strict-affinity true --max-blocks-per-host 3")["maxBlocksPerHost"], 3);

    let parts = ok(name, "split 2 --name pods");
    assert_eq!(
        parts,
        "created split-pods-0 10.244.0.0/29\ncreated split-pods-1 10.244.0.8/29\nremoved pods\n"
    );
    assert_eq!(podwire(name, "split 2 --cidr 10.244.0.0/28").code, 1, "that pool is gone");
    ok(name, "check");
}

#[test]
fn the_commands_work_on_a_file() {
    let dir: PathBuf = std::env::temp_dir().join(format!("podwire-ipam-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("ipam.db");
    let name = path.display().to_string();
    let missing = podwire(&name, "show");
    assert!(missing.code == 1 && missing.stderr.contains("ipam.db does not exist"), "{}", missing.stderr);
    assert!(!path.exists(), "show does not create the file");
    run_commands(&name, &|| Box::new(podwire_store_sqlite::SqliteStore::open(&path).unwrap()));
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn the_commands_work_on_etcd() {
    let mut server = EtcdServer::start();
    let name = server.url();
    run_commands(&name, &|| Box::new(EtcdStore::connect(&[server.url()], None).unwrap()));
    server.stop();
    let gone = podwire(&name, "show");
    assert!(gone.code == 1 && gone.stderr.contains("hint: check that the store runs"), "{}", gone.stderr);
    server.restart();
    ok(&name, "show");
}

#[test]
fn the_commands_work_on_etcd_with_certificates() {
    let certificates = Certificates::create();
    let server = EtcdServer::start_with_tls(&certificates);
    let [authority, certificate, key] =
        ["ca.pem", "client.pem", "client.key"].map(|name| certificates.path(name).display().to_string());
    let name = format!(
        "{} --etcd-ca-cert-file {authority} --etcd-cert-file {certificate} --etcd-key-file {key}",
        server.url()
    );
    let files = TlsFiles {
        authority: Some(certificates.path("ca.pem")),
        identity: Some((certificates.path("client.pem"), certificates.path("client.key"))),
    };
    run_commands(&name, &|| Box::new(EtcdStore::connect(&[server.url()], Some(&files)).unwrap()));
    let refused = podwire(&format!("{} --etcd-ca-cert-file {authority}", server.url()), "show");
    assert_eq!(refused.code, 1, "{}", refused.stdout);
}

#[test]
fn the_commands_work_on_kubernetes() {
    let programs = match kubernetes_programs(&[]) {
        Ok(programs) => programs,
        Err(why) => return eprintln!("left out: podwire ipam on a real API server: {why}"),
    };
    let mut server = KubeApiServer::start(&programs);
    server.grant_ipam_rights();
    let kubeconfig = server.kubeconfig("podwire");
    let name = format!("kubernetes --kubeconfig {}", kubeconfig.display());
    let bare = podwire(&name, "show");
    assert!(
        bare.code == 1 && bare.stderr.contains("are Calico's custom resources installed?"),
        "{}",
        bare.stderr
    );
    server.define_calico_resources(ApiGroup::V1.name());
    run_commands(&name, &|| Box::new(KubernetesStore::connect(Some(&kubeconfig), None).unwrap()));
    server.define_calico_resources(ApiGroup::V3.name());
    let newer = format!("{name} --calico-api-group projectcalico.org/v3");
    let open = || Box::new(KubernetesStore::connect(Some(&kubeconfig), Some(ApiGroup::V3)).unwrap());
    run_commands(&newer, &|| open());
    let unknown = podwire(&format!("{name} --calico-api-group v2"), "show");
    assert!(
        unknown.code == 2 && unknown.stderr.contains("is not an API group of Calico"),
        "{}",
        unknown.stderr
    );
    server.stop();
    let gone = podwire(&newer, "show");
    assert!(gone.code == 1 && gone.stderr.contains("hint: check that the store runs"), "{}", gone.stderr);
}
