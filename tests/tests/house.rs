//! The rules of the house, kept by a test and not by hope: who may import whom, what must not be reachable from
//! the plugins' program, where `unsafe` may stand, what is never executed.

use std::path::{Path, PathBuf};
use std::process::Command;

use podwire_tests::project;

/// From the ground up: each crate may import only what stands before it, and of that only what is named.
const HOUSE: &[(&str, &[&str])] = &[
    ("fs", &[]),
    ("ip", &[]),
    ("netlink", &[]),
    ("kernel", &["netlink"]),
    ("overlay", &["netlink", "kernel"]),
    ("cni-spec", &[]),
    ("cni-plugin", &["netlink", "kernel", "cni-spec"]),
    ("cni-runtime", &["netlink", "kernel", "cni-spec", "cni-plugin"]),
    ("ipam", &["ip"]),
    ("block-ipam", &["ip"]),
    ("store-sqlite", &["netlink", "ip", "ipam", "block-ipam"]),
    ("store-etcd", &["ip", "ipam", "block-ipam"]),
    ("agent-ipc", &["netlink"]),
    ("dhcp", &["netlink", "kernel", "cni-spec", "agent-ipc"]),
    ("verify", &["netlink", "kernel"]),
    ("policy", &[]),
    ("dataplane", &["netlink", "policy"]),
    ("plugins", &["netlink", "kernel", "cni-spec", "cni-plugin", "ip", "ipam", "block-ipam", "agent-ipc"]),
    (
        "audit",
        &[
            "netlink",
            "kernel",
            "cni-spec",
            "cni-plugin",
            "cni-runtime",
            "ip",
            "ipam",
            "block-ipam",
            "agent-ipc",
            "plugins",
        ],
    ),
    ("install", &["cni-spec"]),
    ("sandbox", &["netlink", "kernel", "cni-spec", "cni-plugin", "cni-runtime"]),
    ("kubernetes", &[]),
    ("subnets", &["fs", "ip", "cni-spec", "kubernetes"]),
    (
        "store-kubernetes",
        &["netlink", "cni-spec", "ip", "ipam", "block-ipam", "agent-ipc", "subnets", "kubernetes"],
    ),
    ("steward", &["netlink", "cni-spec", "ip", "ipam", "block-ipam", "agent-ipc"]),
    ("router", &["netlink", "kernel", "ip", "ipam", "block-ipam", "overlay"]),
    (
        "warden",
        &[
            "fs",
            "ip",
            "netlink",
            "kernel",
            "cni-spec",
            "cni-plugin",
            "agent-ipc",
            "policy",
            "dataplane",
            "subnets",
            "kubernetes",
        ],
    ),
    (
        "agent",
        &[
            "fs",
            "netlink",
            "kernel",
            "cni-spec",
            "cni-plugin",
            "agent-ipc",
            "overlay",
            "policy",
            "dataplane",
            "subnets",
            "kubernetes",
            "warden",
            "ip",
            "ipam",
            "block-ipam",
            "steward",
            "router",
        ],
    ),
    (
        "lab",
        &[
            "fs",
            "ip",
            "netlink",
            "kernel",
            "cni-spec",
            "cni-plugin",
            "agent-ipc",
            "cni-runtime",
            "overlay",
            "policy",
            "dataplane",
            "subnets",
            "kubernetes",
            "warden",
            "sandbox",
            "verify",
        ],
    ),
    ("controller", &["cni-spec", "ip", "ipam", "block-ipam", "subnets", "kubernetes"]),
    (
        "cli",
        &[
            "fs",
            "netlink",
            "kernel",
            "cni-spec",
            "cni-plugin",
            "cni-runtime",
            "ip",
            "ipam",
            "block-ipam",
            "store-sqlite",
            "store-etcd",
            "agent-ipc",
            "store-kubernetes",
            "steward",
            "router",
            "dhcp",
            "policy",
            "plugins",
            "audit",
            "sandbox",
            "verify",
            "install",
            "overlay",
            "subnets",
            "kubernetes",
            "dataplane",
            "warden",
            "agent",
            "lab",
            "controller",
        ],
    ),
];

/// The crates (by name) that `package` is linked from, itself included.
fn tree(package: &str) -> Vec<String> {
    let output = Command::new(env!("CARGO"))
        .args([
            "tree",
            "--offline",
            "--package",
            package,
            "--edges",
            "normal,no-proc-macro",
            "--prefix",
            "none",
            "--format",
            "{p}",
        ])
        .current_dir(project("."))
        .output()
        .expect("cargo tree");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut names: Vec<_> =
        text.lines().filter_map(|line| line.split(' ').next()).map(String::from).collect();
    names.sort();
    names.dedup();
    names.retain(|name| !name.is_empty());
    names
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("folder").map(|entry| entry.expect("entry").path()) {
        match entry.is_dir() {
            true => sources(&entry, found),
            false if entry.extension().is_some_and(|end| end == "rs") => found.push(entry),
            false => {}
        }
    }
}

/// The product's own sources: no tests, no benchmarks.
fn product() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in ["crates", "bin"] {
        for part in
            std::fs::read_dir(project(folder)).expect("crates").map(|entry| entry.expect("entry").path())
        {
            sources(&part.join("src"), &mut found);
        }
    }
    assert!(found.len() > 50);
    found
}

#[test]
fn every_crate_imports_only_what_stands_before_it() {
    for (name, allowed) in HOUSE {
        let own = tree(&format!("podwire-{name}"));
        for (other, _) in HOUSE {
            let imported = own.contains(&format!("podwire-{other}")) && other != name;
            assert!(!imported || allowed.contains(other), "{name} imports {other}");
        }
    }
    let there = std::fs::read_dir(project("crates")).expect("crates").count();
    assert_eq!(there, HOUSE.len(), "a crate is missing from the list in this test");
}

#[test]
fn nothing_async_or_tls_is_reachable_from_the_plugins_program() {
    let linked = tree("podwire-cni");
    let banned = [
        "tokio",
        "async",
        "futures",
        "hyper",
        "rustls",
        "openssl",
        "native-tls",
        "ring",
        "tonic",
        "kube",
        "k8s-openapi",
        "etcd",
        "rusqlite",
        "libsqlite3",
        "podwire-subnets",
        "clap",
        "zbus",
    ];
    for name in &linked {
        assert!(!banned.iter().any(|bad| name.starts_with(bad)), "{name} is reachable from podwire-cni");
    }
    let foreign = linked.iter().filter(|name| !name.starts_with("podwire")).count();
    assert!(foreign <= 25, "podwire-cni is made of {foreign} foreign crates: {linked:?}");
}

#[test]
fn unsafe_code_stands_in_one_file_and_each_block_says_why_it_is_safe() {
    for file in product() {
        let text = std::fs::read_to_string(&file).expect("source");
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let count = |words: &[&str]| {
            let has = |line: &&str| words.iter().any(|word| line.contains(word));
            code.clone().filter(has).count()
        };
        if file.ends_with("netlink/src/sys.rs") {
            // Functions of a trait are the promise of those who call them.
            let (places, reasons) = (count(&["unsafe {", "unsafe impl"]), text.matches("SAFETY:").count());
            assert!(places > 0 && reasons >= places, "{places} places, {reasons} reasons");
        } else {
            assert_eq!(count(&["unsafe {", "unsafe impl", "unsafe fn"]), 0, "unsafe in {}", file.display());
        }
    }
}

#[test]
fn no_network_program_is_ever_started() {
    for file in product() {
        let text = std::fs::read_to_string(&file).expect("source");
        for program in [
            "ip",
            "nft",
            "iptables",
            "ip6tables",
            "tc",
            "conntrack",
            "sysctl",
            "modprobe",
            "ethtool",
            "bridge",
        ] {
            let call = format!("Command::new(\"{program}\")");
            assert!(!text.contains(&call), "{} starts {program}", file.display());
        }
    }
}

#[test]
fn no_plugin_waits_by_sleeping() {
    for file in product() {
        let text = std::fs::read_to_string(&file).expect("source");
        // A program file that is being replaced is tried again after a pause: nobody tells when it is done.
        let allowed = file.ends_with("cni-plugin/src/exec.rs");
        assert!(allowed || !text.contains("thread::sleep"), "{} sleeps", file.display());
    }
}
