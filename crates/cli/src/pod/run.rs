//! `podwire pod run`.

use std::collections::BTreeMap;

use clap::Args;
use podwire_cni_spec::Dns;
use podwire_sandbox::{bandwidth, Bandwidth, NetworkRequest, PodName, Pods, Spec};
use serde_json::{json, Value};

use super::batch::{conclude, each, named};
use super::namespace_flag::NamespaceFlag;
use crate::cni::RuntimeFlags;
use crate::failure::Failure;
use crate::output::Output;
use crate::publish;

pub(super) const EXAMPLES: &str = "Examples:
  podwire pod run web                              on the default network
  podwire pod run web --port 8080:80 --port 127.0.0.1:53:53/udp
  podwire pod run web --network storage --network metrics=mon0
  podwire pod run web --network pods=eth0          instead of the default network
  podwire pod run web --dns-server 10.96.0.10 --dns-search svc.cluster.local --dns-option ndots:5
  podwire pod run load --count 200                 load-1 to load-200, in parallel
  generate-names | podwire pod run -

The default network is the first usable file in the config directory, in the order of names. If a
step fails, all steps for the pod are undone.";

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// Pods: NAME or NAMESPACE/NAME; - reads names from standard input.
    #[arg(required = true, value_name = "POD")]
    pods: Vec<String>,
    #[command(flatten)]
    namespace: NamespaceFlag,
    /// Number of pods for each name: NAME-1, NAME-2…
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    count: Option<u32>,
    /// Secondary network, as interface net1, net2… or IFNAME; repeatable.
    #[arg(long, value_name = "NAME[=IFNAME]", value_parser = network)]
    network: Vec<NetworkRequest>,
    /// Use the network of the node: no namespace and no addresses for the pod.
    #[arg(long)]
    host_network: bool,
    /// Publish a port on the host: [ADDRESS:]HOST_PORT:PORT[/PROTOCOL]; repeatable.
    #[arg(long, short, value_name = "PORTS", value_parser = publish::parse)]
    port: Vec<Value>,
    /// Limit for received traffic in bits per second, for example 10M.
    #[arg(long, value_name = "RATE", value_parser = bandwidth::rate)]
    ingress_bandwidth: Option<u64>,
    /// Limit for sent traffic in bits per second.
    #[arg(long, value_name = "RATE", value_parser = bandwidth::rate)]
    egress_bandwidth: Option<u64>,
    /// Host name of the pod [default: its name].
    #[arg(long, value_name = "NAME")]
    hostname: Option<String>,
    /// Sysctl of the pod's namespaces; repeatable.
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    sysctl: Vec<(String, String)>,
    /// Label; repeatable.
    #[arg(long, short, value_name = "KEY=VALUE", value_parser = pair)]
    label: Vec<(String, String)>,
    /// Annotation; repeatable. kubernetes.io/ingress-bandwidth and egress-bandwidth limit traffic.
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    annotation: Vec<(String, String)>,
    /// UID of the pod in Kubernetes.
    #[arg(long, value_name = "UID", default_value = "", hide_default_value = true)]
    uid: String,
    #[command(flatten)]
    dns: DnsFlags,
    #[command(flatten)]
    flags: RuntimeFlags,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "DNS (default: as the plugins return, else as on the node)")]
struct DnsFlags {
    /// DNS server; repeatable, resolvers read three.
    #[arg(long, value_name = "ADDRESS")]
    dns_server: Vec<String>,
    /// Search domain for short names; repeatable.
    #[arg(long, value_name = "DOMAIN")]
    dns_search: Vec<String>,
    /// Resolver option, for example ndots:5; repeatable.
    #[arg(long, value_name = "OPTION")]
    dns_option: Vec<String>,
}

impl Run {
    pub(crate) fn run(&self) -> Result<Output, Failure> {
        let pods = self.multiplied(named(&self.pods, &self.namespace)?)?;
        let (networks, runtime) = (self.flags.catalogue(), Pods::new(self.flags.runtime()));
        let outcome = each(&pods, |pod| runtime.run(&self.spec(pod), &networks));
        let mut text = String::new();
        let mut json = Vec::new();
        for (pod, started) in &outcome.done {
            let addresses: Vec<_> = started.addresses.iter().map(ToString::to_string).collect();
            text += format!("running {pod}  {}", addresses.join(" ")).trim_end();
            text.push('\n');
            text.extend(started.warnings.iter().map(|warning| format!("  warning: {warning}\n")));
            json.push(json!({
                "namespace": pod.namespace(),
                "name": pod.name(),
                "id": started.id,
                "pid": started.process.pid,
                "netns": started.process.netns(),
                "addresses": addresses,
                "warnings": started.warnings,
            }));
        }
        conclude(Output::new(text, json!({ "pods": json })), &outcome.failed, "run")
    }

    fn multiplied(&self, pods: Vec<PodName>) -> Result<Vec<PodName>, Failure> {
        let Some(count) = self.count else { return Ok(pods) };
        let numbered = pods.iter().flat_map(|pod| (1..=count).map(move |n| (pod, n)));
        let named = numbered.map(|(pod, n)| PodName::new(pod.namespace(), &format!("{}-{n}", pod.name())));
        named.collect::<Result<_, _>>().map_err(Failure::context("cannot run pods"))
    }

    fn spec(&self, pod: &PodName) -> Spec {
        let map = |pairs: &[(String, String)]| pairs.iter().cloned().collect::<BTreeMap<_, _>>();
        Spec {
            uid: self.uid.clone(),
            hostname: self.hostname.clone(),
            host_network: self.host_network,
            dns: Dns {
                nameservers: self.dns.dns_server.clone(),
                search: self.dns.dns_search.clone(),
                options: self.dns.dns_option.clone(),
                domain: String::new(),
            },
            ports: self.port.clone(),
            bandwidth: Bandwidth { ingress: self.ingress_bandwidth, egress: self.egress_bandwidth },
            sysctls: self.sysctl.clone(),
            labels: map(&self.label),
            annotations: map(&self.annotation),
            networks: self.network.clone(),
            ..Spec::new(pod.clone())
        }
    }
}

fn network(text: &str) -> Result<NetworkRequest, String> {
    let (network, ifname) = match text.split_once('=') {
        Some((network, ifname)) => (network, Some(ifname.to_owned())),
        None => (text, None),
    };
    if network.is_empty() || ifname.as_deref() == Some("") {
        return Err("expected NAME or NAME=IFNAME".to_owned());
    }
    Ok(NetworkRequest { network: network.to_owned(), ifname })
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}
