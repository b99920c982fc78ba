//! The rules of the source tree: which crate may import which, what the plugins' program must not link, where
//! `unsafe` and blocking sleeps are allowed, and which programs the product never starts.

use std::path::{Path, PathBuf};
use std::process::Command;

use podwire_tests::project;

/// Every crate, bottom-up, with the crates that it may import, directly or through another. A crate imports only crates
/// above it in this list.
const LAYERS: &[(&str, &[&str])] = &[
    ("fs", &[]),
    ("ip", &[]),
    ("netlink", &["ip"]),
    ("reconcile", &["ip", "netlink"]),
    ("kernel", &["fs", "ip", "netlink"]),
    ("cni-spec", &[]),
    ("cni-plugin", &["fs", "ip", "netlink", "kernel", "cni-spec"]),
    ("cni-runtime", &["fs", "ip", "netlink", "kernel", "cni-spec", "cni-plugin"]),
    ("agent-ipc", &["fs", "ip", "netlink", "kernel", "cni-spec"]),
    ("ipam", &["ip"]),
    ("block-ipam", &["ip"]),
    ("etcd", &[]),
    ("store-sqlite", &["ip", "netlink", "block-ipam"]),
    ("store-etcd", &["ip", "block-ipam", "etcd"]),
    ("http-server", &[]),
    ("kubernetes", &[]),
    (
        "store-kubernetes",
        &["fs", "ip", "netlink", "kernel", "cni-spec", "agent-ipc", "block-ipam", "kubernetes"],
    ),
    ("subnets", &["fs", "ip", "cni-spec", "etcd", "kubernetes"]),
    ("plugins", &["fs", "ip", "netlink", "kernel", "cni-spec", "cni-plugin", "agent-ipc", "ipam"]),
    ("overlay", &["fs", "ip", "netlink", "kernel"]),
    ("fast-path", &["fs", "ip", "netlink", "reconcile", "kernel"]),
    ("bgp", &["fs", "ip", "netlink", "reconcile", "block-ipam"]),
    ("policy", &[]),
    (
        "policy-agent",
        &[
            "fs",
            "ip",
            "netlink",
            "reconcile",
            "kernel",
            "cni-spec",
            "cni-plugin",
            "agent-ipc",
            "kubernetes",
            "policy",
        ],
    ),
    ("services", &["ip", "netlink", "reconcile", "http-server", "policy"]),
    (
        "agent",
        &[
            "fs",
            "ip",
            "netlink",
            "reconcile",
            "kernel",
            "cni-spec",
            "cni-plugin",
            "agent-ipc",
            "block-ipam",
            "etcd",
            "http-server",
            "kubernetes",
            "subnets",
            "overlay",
            "fast-path",
            "bgp",
            "policy",
            "policy-agent",
            "services",
        ],
    ),
    ("controller", &["ip", "ipam", "block-ipam", "http-server", "kubernetes"]),
    ("dhcp", &["fs", "ip", "netlink", "kernel", "cni-spec", "agent-ipc"]),
    ("sandbox", &["fs", "ip", "netlink", "kernel", "cni-spec", "cni-plugin", "cni-runtime"]),
    ("install", &["fs", "ip", "cni-spec"]),
    (
        "audit",
        &[
            "fs",
            "ip",
            "netlink",
            "kernel",
            "cni-spec",
            "cni-plugin",
            "cni-runtime",
            "agent-ipc",
            "ipam",
            "plugins",
        ],
    ),
    ("verify", &["fs", "ip", "netlink", "kernel", "policy"]),
    (
        "lab",
        &[
            "fs",
            "ip",
            "netlink",
            "reconcile",
            "kernel",
            "cni-spec",
            "cni-plugin",
            "cni-runtime",
            "agent-ipc",
            "etcd",
            "http-server",
            "kubernetes",
            "subnets",
            "overlay",
            "policy",
            "policy-agent",
            "services",
            "sandbox",
            "verify",
        ],
    ),
    (
        "cli",
        &[
            "fs",
            "ip",
            "netlink",
            "reconcile",
            "kernel",
            "cni-spec",
            "cni-plugin",
            "cni-runtime",
            "agent-ipc",
            "ipam",
            "block-ipam",
            "etcd",
            "store-sqlite",
            "store-etcd",
            "http-server",
            "kubernetes",
            "store-kubernetes",
            "subnets",
            "plugins",
            "overlay",
            "fast-path",
            "bgp",
            "policy",
            "policy-agent",
            "services",
            "agent",
            "controller",
            "dhcp",
            "sandbox",
            "install",
            "audit",
            "verify",
            "lab",
        ],
    ),
];

/// The names of the crates that `package` links, including itself.
fn linked_crates(package: &str) -> Vec<String> {
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

/// The paths in a directory.
fn entries(dir: impl AsRef<Path>) -> impl Iterator<Item = PathBuf> {
    std::fs::read_dir(dir).expect("directory").map(|entry| entry.expect("entry").path())
}

/// Appends the Rust files below `dir` to `files`.
fn collect_sources(dir: &Path, files: &mut Vec<PathBuf>) {
    for path in entries(dir) {
        if path.is_dir() {
            collect_sources(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// The sources of the product, without tests and benchmarks.
fn product_sources() -> Vec<PathBuf> {
    let mut files = Vec::new();
    for package in entries(project("crates")).chain(entries(project("bin"))) {
        collect_sources(&package.join("src"), &mut files);
    }
    assert!(files.len() > 50);
    files
}

#[test]
fn every_crate_imports_only_the_crates_that_its_layer_allows() {
    for (name, allowed) in LAYERS {
        let linked = linked_crates(&format!("podwire-{name}"));
        for (other, _) in LAYERS {
            let imported = linked.contains(&format!("podwire-{other}")) && other != name;
            assert!(!imported || allowed.contains(other), "{name} imports {other}");
        }
    }
    assert_eq!(entries(project("crates")).count(), LAYERS.len(), "a crate is missing from LAYERS");
}

#[test]
fn the_layers_are_in_order_and_only_cli_imports_the_agent() {
    for (index, (name, allowed)) in LAYERS.iter().enumerate() {
        let lower = &LAYERS[..index];
        for other in *allowed {
            assert!(lower.iter().any(|(name, _)| name == other), "{other} must come before {name} in LAYERS");
        }
        assert!(*name == "cli" || !allowed.contains(&"agent"), "{name} imports agent");
    }
}

#[test]
fn the_plugins_program_links_nothing_async_and_no_tls() {
    let linked = linked_crates("podwire-cni");
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
        assert!(!banned.iter().any(|bad| name.starts_with(bad)), "podwire-cni links {name}");
    }
    let foreign = linked.iter().filter(|name| !name.starts_with("podwire")).count();
    assert!(foreign <= 25, "podwire-cni links {foreign} foreign crates: {linked:?}");
}

#[test]
fn unsafe_code_is_in_one_module_and_each_block_says_why_it_is_safe() {
    for file in product_sources() {
        let text = std::fs::read_to_string(&file).expect("source");
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let count = |words: &[&str]| {
            let has = |line: &&str| words.iter().any(|word| line.contains(word));
            code.clone().filter(has).count()
        };
        if file.parent().is_some_and(|folder| folder.ends_with("netlink/src/sys")) {
            // An `unsafe fn` of a trait states what its callers guarantee.
            let (blocks, reasons) = (count(&["unsafe {", "unsafe impl"]), text.matches("SAFETY:").count());
            assert!(reasons >= blocks, "{}: {blocks} blocks, {reasons} reasons", file.display());
        } else {
            assert_eq!(count(&["unsafe {", "unsafe impl", "unsafe fn"]), 0, "unsafe in {}", file.display());
        }
    }
}

#[test]
fn the_product_starts_no_network_program() {
    for file in product_sources() {
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

/// The files that may sleep, because there is no event to wait for.
const SLEEPERS: &[&str] = &[
    // accept(2) fails with EMFILE while the socket stays readable, so poll(2) does not wait.
    "agent-ipc/src/server.rs",
    // The kernel sends no event when a plugin file that was being written (ETXTBSY) is closed.
    "cni-plugin/src/exec.rs",
    // A readiness gate of a Calico config is an HTTP URL, which can only be polled.
    "plugins/src/calico/readiness_gate.rs",
    // The same state of accept(2), in an async server.
    "http-server/src/lib.rs",
    // A refused request may be repeated later: after a backoff, or after the time that the server asks for.
    "controller/src/assigner.rs",
    "kubernetes/src/backoff.rs",
    "store-kubernetes/src/server.rs",
    // Nodes that chose the same subnet at the same moment choose again at different ones.
    "subnets/src/etcd/acquire.rs",
    // An API server sends no events about a kind that it does not have.
    "policy-agent/src/source/kubernetes.rs",
    "agent/src/services/kubernetes.rs",
];

#[test]
fn the_product_does_not_wait_by_sleeping() {
    for file in product_sources() {
        let text = std::fs::read_to_string(&file).expect("source");
        // park_timeout is a sleep that any unpark ends. A condition variable or a channel names the event.
        assert!(!text.contains("park_timeout"), "{} uses park_timeout", file.display());
        let allowed = SLEEPERS.iter().any(|name| file.ends_with(name));
        let sleeps = ["thread::sleep", "time::sleep"].iter().any(|call| text.contains(call));
        assert!(allowed || !sleeps, "{} sleeps", file.display());
    }
}
