//! `podwire lab up`.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use podwire_lab::{Family, Lab, Plan, Store};

use super::status;
use crate::paint::Paint;
use crate::{Answer, Failure};

pub(super) const EXAMPLES: &str = "Examples:
  podwire lab up --nodes 2
  podwire lab up --nodes 5 --subnets 2 --backend direct-or-vxlan
  podwire lab up --nodes 3 --store etcd --family ipv4 --name second
  podwire lab up --nodes 3 --pods 0                 nodes only
  podwire lab up --nodes 3 --cni-network calico     routed pods, with addresses of blocks
  podwire lab up --pods 0 --policies shop/          the pods and the policies of these files

The nodes are n1, n2…, their pods n1-pod1, n1-pod2…, and the machine between the wires is the router. On each node runs
`podwire agent`, this program; pods are run with the list of plugins that it writes. If anything fails, all is taken back.

With --cni-network calico pods are routed: on each node runs `podwire node`, and the pool says the backend: vxlan, direct-or-vxlan, host-gw,
or ipip, for IPv4 alone. The store is embedded or etcd.

The files of --policies are YAML or JSON, as kubectl takes them: NetworkPolicies, ClusterNetworkPolicies, Namespaces, and Pods (or
Deployments and their like, one pod each), which are run besides those of --pods, each on the node that it names or on the next
in turn. `podwire lab apply` reads them again.";

#[derive(Debug, Args)]
pub(crate) struct Up {
    #[command(flatten)]
    lab: super::Named,
    /// How many nodes.
    #[arg(long, value_name = "N", default_value_t = 2)]
    nodes: u16,
    /// How many pods on each node.
    #[arg(long, value_name = "M", default_value_t = 2)]
    pods: u16,
    /// How nodes are joined.
    #[arg(long, value_name = "KIND", default_value = "vxlan", value_parser = podwire_lab::BACKENDS)]
    backend: String,
    /// Where nodes are known: an SQLite file, a list in a file, or a real etcd, which must be installed.
    #[arg(long, value_name = "STORE", default_value = "embedded")]
    store: StoreName,
    /// How many wires the nodes are on, with a router between.
    #[arg(long, value_name = "K", default_value_t = 1)]
    subnets: u16,
    /// Which addresses nodes and pods have.
    #[arg(long, value_name = "FAMILY", default_value = "dual")]
    family: FamilyName,
    /// How pods are attached: by flannel's plugin, to a bridge, each to a cable of its own, or routed, by Calico's.
    #[arg(long, value_name = "CHAIN", default_value = "flannel", value_parser = podwire_lab::NETWORKS)]
    cni_network: String,
    /// Keep pods apart by the policies in this folder, and run the pods that it describes.
    #[arg(long, value_name = "FOLDER")]
    policies: Option<PathBuf>,
    /// Where plugins are; may be repeated [default: beside this program, else where plugins usually are].
    #[arg(long, value_name = "DIR")]
    plugin_dir: Vec<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum StoreName {
    Embedded,
    Static,
    Etcd,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FamilyName {
    Ipv4,
    Ipv6,
    Dual,
}

impl Up {
    pub(super) fn run(self, json: bool) -> Result<Answer, Failure> {
        let (start, paint) = (Instant::now(), Paint::stdout());
        let name = self.lab.name.clone();
        let mut tell = |what: &str, took: Duration| {
            if !json {
                println!("  {} {what:<52} {:.2} s", paint.good("✓"), took.as_secs_f64());
            }
        };
        let made = Lab::up(self.plan(), &mut tell).map_err(Failure::to(format!("cannot make lab {name}")))?;
        let status = made.status();
        let text = format!(
            "\n{}\nlab {name} is up after {:.1} s; next: podwire lab verify, podwire lab break, podwire lab down\n",
            status::text(&status, paint),
            start.elapsed().as_secs_f64()
        );
        Ok(Answer::new(text, status::json(&status)))
    }

    fn plan(self) -> Plan {
        Plan {
            name: self.lab.name,
            nodes: self.nodes,
            pods: self.pods,
            backend: self.backend,
            store: match self.store {
                StoreName::Embedded => Store::Embedded,
                StoreName::Static => Store::Static,
                StoreName::Etcd => Store::Etcd,
            },
            subnets: self.subnets,
            family: match self.family {
                FamilyName::Ipv4 => Family::Ipv4,
                FamilyName::Ipv6 => Family::Ipv6,
                FamilyName::Dual => Family::Dual,
            },
            cni_network: self.cni_network,
            policies: self.policies,
            plugin_dirs: self.plugin_dir,
        }
    }
}
