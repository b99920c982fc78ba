//! `podwire lab up`.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use podwire_lab::{Families, Lab, LabSpec, Store};

use super::name_flag::NameFlag;
use super::status;
use crate::failure::Failure;
use crate::output::Output;
use crate::paint::Paint;
use crate::plugin_dirs;
use crate::policy::{warning_json, warning_lines};

pub(super) const EXAMPLES: &str = "Examples:
  podwire lab up --nodes 2
  podwire lab up --nodes 5 --subnets 2 --backend direct-or-vxlan
  podwire lab up --nodes 3 --store etcd --family ipv4 --name second
  podwire lab up --nodes 3 --pods 0                 nodes without pods
  podwire lab up --nodes 3 --cni-network calico     the Calico agent and address blocks
  podwire lab up --pods 0 --policies shop/          the pods and policies of these files
  podwire lab up --services shop/                   the pods and Services of these files

The nodes are n1, n2…, their pods are n1-pod1, n1-pod2…, and a machine named router connects the
subnets. Each node runs `podwire agent flannel`, and its pods use the conflist that the agent
writes. If a step fails, everything is undone.

With --cni-network calico each node runs `podwire agent calico`. The backend is vxlan,
direct-or-vxlan, host-gw, or ipip (IPv4 only), and the store is embedded or etcd.

The files of --policies are YAML or JSON as for kubectl: NetworkPolicies, ClusterNetworkPolicies,
Namespaces, and Pods or workloads such as Deployments (one pod each). These pods are started in
addition to those of --pods, each on the node that it names or on the next in turn. `podwire lab
apply` reads the files again.

The files of --services are Services, and perhaps EndpointSlices, Nodes with labels, and pods. A
Service without a cluster IP or NodePort gets one, and a Service with a selector and no slices gets
slices with the pods that have the labels. One directory may be used for --policies and --services.";

#[derive(Debug, Args)]
pub(crate) struct Up {
    #[command(flatten)]
    lab: NameFlag,
    /// Number of nodes.
    #[arg(long, value_name = "N", default_value_t = 2)]
    nodes: u16,
    /// Number of pods on each node.
    #[arg(long, value_name = "M", default_value_t = 2)]
    pods: u16,
    /// Backend between the nodes.
    #[arg(long, value_name = "KIND", default_value = "vxlan", value_parser = podwire_lab::BACKENDS)]
    backend: String,
    /// Store: an SQLite file, a static list in a file, or etcd, which must be installed.
    #[arg(long, value_name = "STORE", default_value = "embedded")]
    store: StoreName,
    /// Number of L2 segments, with a router between them.
    #[arg(long, value_name = "K", default_value_t = 1)]
    subnets: u16,
    /// Address families of nodes and pods.
    #[arg(long, value_name = "FAMILY", default_value = "dual")]
    family: FamilyName,
    /// Plugin that attaches pods; calico also chooses the Calico agent.
    #[arg(long, value_name = "CHAIN", default_value = "flannel", value_parser = podwire_lab::NETWORKS)]
    cni_network: String,
    /// Enforce the policies in this directory, and start the pods in it.
    #[arg(long, value_name = "DIR")]
    policies: Option<PathBuf>,
    /// Serve the Services in this directory, and start the pods in it.
    #[arg(long, value_name = "DIR")]
    services: Option<PathBuf>,
    /// Directory of plugins; repeatable [default: beside this program, then the usual ones].
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
    pub(super) fn run(self, json: bool) -> Result<Output, Failure> {
        let (start, paint) = (Instant::now(), Paint::stdout());
        let name = self.lab.name.clone();
        let mut report = |what: &str, took: Duration| {
            if !json {
                println!("  {} {what:<52} {:.2} s", paint.good("✓"), took.as_secs_f64());
            }
        };
        let lab = Lab::up(self.spec(), &mut report)
            .map_err(Failure::context(format!("cannot start lab {name}")))?;
        let status = lab.status();
        let warnings = lab
            .policy_warnings()
            .map_err(Failure::context(format!("lab {name} runs, but its policies cannot be checked")))?;
        let text = format!(
            "\n{}{}\nstarted lab {name} in {:.1} s; next: podwire lab verify, podwire lab break, podwire lab down\n",
            status::text(&status, paint),
            warning_lines(&warnings, paint),
            start.elapsed().as_secs_f64()
        );
        let mut json = status::json(&status);
        json["warnings"] = warnings.iter().map(warning_json).collect();
        Ok(Output::new(text, json))
    }

    fn spec(self) -> LabSpec {
        LabSpec {
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
            families: match self.family {
                FamilyName::Ipv4 => Families::Ipv4,
                FamilyName::Ipv6 => Families::Ipv6,
                FamilyName::Dual => Families::Dual,
            },
            cni_network: self.cni_network,
            policies: self.policies,
            services: self.services,
            plugin_dirs: match self.plugin_dir {
                none if none.is_empty() => plugin_dirs::default(),
                dirs => dirs,
            },
        }
    }
}
