//! `podwire pod run`.

use std::collections::BTreeMap;

use clap::Args;
use podwire_cni_spec::Dns;
use podwire_sandbox::{bandwidth, Bandwidth, NetworkRequest, PodName, Pods, Spec};
use serde_json::{json, Value};

use super::several::{conclude, each, named};
use super::Namespace;
use crate::verbs::Place;
use crate::{publish, Answer, Failure};

pub(super) const EXAMPLES: &str = "Examples:
  podwire pod run web                              on the default network
  podwire pod run web --port 8080:80 --port 127.0.0.1:53:53/udp
  podwire pod run web --network storage --network metrics=mon0
  podwire pod run web --network pods=eth0          in place of the default network
  podwire pod run web --dns-server 10.96.0.10 --dns-search default.svc.cluster.local --dns-option ndots:5
  podwire pod run load --count 200                 load-1 to load-200, many at once
  generate-names | podwire pod run -

The default network is that of the first file in the config folder, by name, that can be used. If anything fails, all
that was done for the pod is taken back.";

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The pods: NAME or NAMESPACE/NAME; - reads names from standard input.
    #[arg(required = true, value_name = "POD")]
    pods: Vec<String>,
    #[command(flatten)]
    namespace: Namespace,
    /// Run so many pods of each name: NAME-1, NAME-2…
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    count: Option<u32>,
    /// A network besides the default one, as net1, net2… or with a name for the interface; may be repeated.
    #[arg(long, value_name = "NAME[=IFNAME]", value_parser = network)]
    network: Vec<NetworkRequest>,
    /// Use the node's network: no namespace, no addresses of its own.
    #[arg(long)]
    host_network: bool,
    /// Lead a port of the host into the pod: [ADDRESS:]HOST_PORT:PORT[/PROTOCOL]; may be repeated.
    #[arg(long, short, value_name = "PORTS", value_parser = publish::parse)]
    port: Vec<Value>,
    /// Bits a second that the pod may receive, like 10M.
    #[arg(long, value_name = "RATE", value_parser = bandwidth::rate)]
    ingress_bandwidth: Option<u64>,
    /// Bits a second that the pod may send.
    #[arg(long, value_name = "RATE", value_parser = bandwidth::rate)]
    egress_bandwidth: Option<u64>,
    /// The name of the pod's host [default: the pod's name].
    #[arg(long, value_name = "NAME")]
    hostname: Option<String>,
    /// A knob of the pod's namespaces; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    sysctl: Vec<(String, String)>,
    /// A label; may be repeated.
    #[arg(long, short, value_name = "KEY=VALUE", value_parser = pair)]
    label: Vec<(String, String)>,
    /// An annotation; may be repeated. kubernetes.io/ingress-bandwidth and egress-bandwidth limit the pod.
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    annotation: Vec<(String, String)>,
    /// The id that Kubernetes gave to the pod.
    #[arg(long, value_name = "UID", default_value = "", hide_default_value = true)]
    uid: String,
    #[command(flatten)]
    names: Names,
    #[command(flatten)]
    place: Place,
}

/// How the pods find names.
#[derive(Debug, Args)]
#[command(next_help_heading = "Names (default: as the plugins say, else as on the node)")]
struct Names {
    /// A DNS server; may be repeated, three are read.
    #[arg(long, value_name = "ADDRESS")]
    dns_server: Vec<String>,
    /// A domain to try for short names; may be repeated.
    #[arg(long, value_name = "DOMAIN")]
    dns_search: Vec<String>,
    /// An option for resolvers, like ndots:5; may be repeated.
    #[arg(long, value_name = "OPTION")]
    dns_option: Vec<String>,
}

impl Run {
    pub(crate) fn run(&self) -> Result<Answer, Failure> {
        let pods = self.multiplied(named(&self.pods, &self.namespace)?)?;
        let (networks, runtime) = (self.place.catalogue(), Pods::new(self.place.runtime()));
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
        conclude(Answer::new(text, json.into()), &outcome.failed, "run")
    }

    fn multiplied(&self, pods: Vec<PodName>) -> Result<Vec<PodName>, Failure> {
        let Some(count) = self.count else { return Ok(pods) };
        let numbered = pods.iter().flat_map(|pod| (1..=count).map(move |n| (pod, n)));
        let named = numbered.map(|(pod, n)| PodName::new(pod.namespace(), &format!("{}-{n}", pod.name())));
        named.collect::<Result<_, _>>().map_err(Failure::to("cannot run pods"))
    }

    fn spec(&self, pod: &PodName) -> Spec {
        let map = |pairs: &[(String, String)]| pairs.iter().cloned().collect::<BTreeMap<_, _>>();
        Spec {
            uid: self.uid.clone(),
            hostname: self.hostname.clone(),
            host_network: self.host_network,
            dns: Dns {
                nameservers: self.names.dns_server.clone(),
                search: self.names.dns_search.clone(),
                options: self.names.dns_option.clone(),
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
    match network.is_empty() || ifname.as_deref() == Some("") {
        true => Err("expected NAME or NAME=IFNAME".to_owned()),
        false => Ok(NetworkRequest { network: network.to_owned(), ifname }),
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}
