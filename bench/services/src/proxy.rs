//! The programs that are compared: `podwire agent`, and the real kube-proxy in two modes.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use podwire_test_servers::kubernetes_programs;
use podwire_tests::{podwire, Node, Process};
use serde_json::json;

use crate::api;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Proxy {
    Podwire,
    Nftables,
    Iptables,
}

impl Proxy {
    pub const ALL: [Proxy; 3] = [Proxy::Podwire, Proxy::Nftables, Proxy::Iptables];

    /// Its name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Proxy::Podwire => "podwire agent",
            Proxy::Nftables => "kube-proxy nftables",
            Proxy::Iptables => "kube-proxy iptables",
        }
    }

    /// The program. The error says what is missing.
    pub fn program(self) -> Result<PathBuf, String> {
        let kube_proxy = || Ok(kubernetes_programs(&["kube-proxy"])?.join("kube-proxy"));
        match self {
            Proxy::Podwire => Ok(podwire().into()),
            Proxy::Nftables => kube_proxy(),
            Proxy::Iptables if is_installed("iptables-restore") => kube_proxy(),
            Proxy::Iptables => Err("iptables is not installed".into()),
        }
    }

    /// Starts it on the node.
    pub fn start(self, program: &Path, node: &Node) -> Process {
        let mut command = node.command(&program.display().to_string());
        match self {
            Proxy::Podwire => agent(&mut command, node),
            Proxy::Nftables => kube_proxy(&mut command, node, "nftables"),
            Proxy::Iptables => kube_proxy(&mut command, node, "iptables"),
        }
        Process::start(command)
    }
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).exists())
}

fn agent(command: &mut Command, node: &Node) {
    node.write("/run/net-conf.json", r#"{"Network": "10.1.0.0/16", "Backend": {"Type": "host-gw"}}"#);
    command.args([
        "agent",
        "flannel",
        "--node-name",
        "own",
        "--store",
        "kubernetes",
        "--services",
        "kubernetes",
    ]);
    command.args(["--kube-api-url", &format!("http://{}", api::ADDRESS)]);
    command.args(["--net-config-path", "/run/net-conf.json"]);
    command.args(["--cni-network", "bridge", "--cni-conflist", "/run/cni-conf/10-podwire.conflist"]);
    command.env("RUST_LOG", "warn");
}

/// kube-proxy with its defaults, except what the namespaces and the stand-in need.
fn kube_proxy(command: &mut Command, node: &Node, mode: &str) {
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "bench",
        "clusters": [{"name": "bench", "cluster": {"server": format!("http://{}", api::ADDRESS)}}],
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
        "users": [{"name": "bench", "user": {}}],
    });
    node.write("/run/kubeconfig", &kubeconfig.to_string());
    let config = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": mode,
        "clusterCIDR": "10.1.0.0/24",
        "hostnameOverride": "own",
        "clientConnection": {"kubeconfig": "/run/kubeconfig", "contentType": "application/json"},
        // Limits that belong to the whole machine, not to the namespace.
        "conntrack": {"maxPerCore": 0, "min": 0},
        // The stand-in has no lists by watch.
        "featureGates": {"WatchListClient": false},
    });
    node.write("/run/kube-proxy.json", &config.to_string());
    command.arg("--config=/run/kube-proxy.json");
}
