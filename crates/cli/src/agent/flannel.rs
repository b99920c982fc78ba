//! `podwire agent flannel`: does what flanneld does. Flags that flanneld has keep its names and environment variables.

mod conflist_flags;
mod etcd_flags;
mod interface_flags;
mod kubernetes_flags;

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use ipnet::IpNet;
use podwire_agent::flannel::Settings;
use podwire_http_server::Listen;
use podwire_overlay::FirewallOptions;
use podwire_subnets::{Embedded, Error, Etcd, Kubernetes, Source, StaticList};

use self::conflist_flags::ConflistFlags;
use self::etcd_flags::EtcdFlags;
use self::interface_flags::InterfaceFlags;
use self::kubernetes_flags::KubernetesFlags;
use super::fast_path_flags::FastPathFlags;
use super::policy_flags::PolicyFlags;
use super::services_flags::ServicesFlags;
use crate::failure::Failure;
use crate::{duration, log};

pub(crate) const EXAMPLES: &str = "Examples:
  podwire agent flannel --kube-subnet-mgr --ip-masq --cni-network flannel
      in a Kubernetes cluster, instead of flanneld
  podwire agent flannel --etcd-endpoints http://10.0.0.1:2379 --ip-masq
      with flannel's keys in etcd
  podwire agent flannel --store embedded:/var/lib/podwire/cluster.db --net-config-path net-conf.json
      nodes on one machine that share an SQLite file
  podwire agent flannel --store list:/etc/podwire/nodes.json
      nodes from a file
  podwire agent flannel --kube-subnet-mgr --cni-network bridge --policy kubernetes
      with network policies
  podwire agent flannel --retire
      after flanneld runs on this node again and has created its rules

The network config is flannel's net-conf.json: PREFIX/config in etcd, the file of --net-config-path
with Kubernetes and the embedded store, or a part of the list file. When the routes to all nodes
are set up, the agent writes /run/flannel/subnet.env, then the conflist of --cni-network. SIGTERM
ends the agent and leaves the network as it is.";

#[derive(Debug, Args)]
pub(crate) struct Flannel {
    /// Store of the nodes: etcd, kubernetes, embedded:FILE or list:FILE.
    #[arg(long, value_name = "STORE", env = "PODWIRE_STORE", default_value = "etcd", hide_env = true)]
    store: String,
    /// Name of this node [default: the host name].
    #[arg(long, value_name = "NAME", env = "NODE_NAME", hide_env = true)]
    node_name: Option<String>,
    /// Masquerade traffic from pods to addresses outside the pod network.
    #[arg(long, env = "FLANNELD_IP_MASQ", hide_env = true)]
    ip_masq: bool,
    /// Keep the source port of masqueraded connections if possible.
    #[arg(long, env = "FLANNELD_IP_MASQ_FULLY_RANDOM_DISABLE", hide_env = true)]
    ip_masq_fully_random_disable: bool,
    /// Add firewall rules that accept forwarded pod traffic.
    #[arg(long, value_name = "BOOL", env = "FLANNELD_IPTABLES_FORWARD_RULES", hide_env = true)]
    #[arg(default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    iptables_forward_rules: bool,
    #[command(flatten)]
    policy: PolicyFlags,
    #[command(flatten)]
    services: ServicesFlags,
    /// Networks that pods may use as source addresses; written to the conflist.
    #[arg(
        long,
        help_heading = "Policy",
        value_name = "NETWORK,NETWORK",
        env = "PODWIRE_POLICY_ALLOWED_SOURCE_PREFIXES",
        hide_env = true
    )]
    #[arg(requires = "policy", value_delimiter = ',', value_parser = network)]
    policy_allowed_source_prefixes: Vec<IpNet>,
    /// Drop packets to unused addresses of this node's pod CIDR, with a blackhole route.
    #[arg(long, env = "FLANNELD_IP_BLACKHOLE_ROUTE", hide_env = true)]
    ip_blackhole_route: bool,
    /// Derive the MAC address of the VXLAN device from the node's name.
    #[arg(long)]
    derived_mac: bool,
    /// File of this node's WireGuard key.
    #[arg(
        long,
        value_name = "FILE",
        env = "WIREGUARD_KEY_FILE",
        default_value = "/run/flannel/wgkey",
        hide_env = true
    )]
    wireguard_key_file: PathBuf,
    /// Time between two full comparisons with the kernel.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration::parse)]
    resync: Duration,
    /// Address for health and metrics in addition to 127.0.0.1 and ::1; 0.0.0.0 or :: for all.
    #[arg(long, help_heading = "Health", value_name = "IP", env = "FLANNELD_HEALTHZ_IP", hide_env = true)]
    healthz_ip: Option<IpAddr>,
    /// Port of /healthz, /readyz, /metrics and /status, on loopback; 0 disables the server.
    #[arg(
        long,
        help_heading = "Health",
        value_name = "PORT",
        env = "FLANNELD_HEALTHZ_PORT",
        default_value_t = 0,
        hide_env = true
    )]
    healthz_port: u16,
    /// Remove Podwire's rules and the marks of its routes, leave the rest to flanneld, and exit.
    #[arg(long)]
    retire: bool,
    /// Log format; RUST_LOG=debug logs more.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log_format: log::Format,
    // Last: each has a help heading, which would also hold for flags that follow.
    #[command(flatten)]
    fast_path: FastPathFlags,
    #[command(flatten)]
    etcd: EtcdFlags,
    #[command(flatten)]
    kubernetes: KubernetesFlags,
    #[command(flatten)]
    interface: InterfaceFlags,
    #[command(flatten)]
    conflist: ConflistFlags,
}

/// Parses a network as the conflist accepts it. Host bits are an error: they would have no effect.
fn network(text: &str) -> Result<IpNet, String> {
    let network = podwire_cni_spec::addr::parse_net(text).map_err(|error| error.msg)?;
    if network == network.trunc() {
        Ok(network)
    } else {
        Err(format!("it has host bits set: write {}", network.trunc()))
    }
}

impl Flannel {
    pub(super) fn run(self) -> Result<(), Failure> {
        self.log_format.start();
        let failed = |error: &dyn std::fmt::Display| {
            let error = podwire_cni_spec::Error::internal(error.to_string());
            Failure::new("podwire agent flannel cannot run", error)
        };
        if self.retire {
            return podwire_agent::flannel::retire().map_err(|error| failed(&error));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| failed(&error))?;
        runtime.block_on(async {
            self.conflist.check().map_err(|error| failed(&error))?;
            self.check_source_prefixes().map_err(|error| failed(&error))?;
            let name = self.name().map_err(|error| failed(&error))?;
            let source = self.source(&name).await.map_err(|error| failed(&error))?;
            let settings = self.settings(name).map_err(|error| failed(&error))?;
            podwire_agent::flannel::run(settings, source).await.map_err(|error| failed(&error))
        })
    }

    /// The agent passes the prefixes on in the conflist that it writes, so it must write one.
    fn check_source_prefixes(&self) -> podwire_subnets::Result<()> {
        if self.policy_allowed_source_prefixes.is_empty() || self.conflist.writes_conflist() {
            return Ok(());
        }
        let why = "without --cni-network the agent writes no conflist: add \
                   \"policy\": {\"allowedSourcePrefixes\": […]} to your own";
        Err(Error::Config { origin: "--policy-allowed-source-prefixes".into(), why: why.into() })
    }

    fn name(&self) -> std::io::Result<String> {
        match &self.node_name {
            Some(name) if !name.is_empty() => Ok(name.clone()),
            _ => Ok(std::fs::read_to_string("/proc/sys/kernel/hostname")?.trim().to_owned()),
        }
    }

    /// Opens the store of the nodes.
    async fn source(&self, node: &str) -> podwire_subnets::Result<Source> {
        let kubernetes = &self.kubernetes;
        let store = if kubernetes.kube_subnet_mgr { "kubernetes" } else { self.store.as_str() };
        match store.split_once(':') {
            Some(("embedded", file)) => {
                let embedded = Embedded::open(file).await?;
                if let Some(text) = kubernetes.read_network()? {
                    embedded.set_network(&text).await?;
                }
                Ok(Source::Embedded(embedded))
            }
            Some(("list", file)) => Ok(Source::Static(StaticList::new(file))),
            None if store == "etcd" => Ok(Source::Etcd(Etcd::new(self.etcd.options())?)),
            None if store == "kubernetes" => {
                Ok(Source::Kubernetes(Box::new(Kubernetes::new(&kubernetes.options(node)).await?)))
            }
            _ => {
                let why = format!("{store:?} is unknown: write etcd, kubernetes, embedded:FILE or list:FILE");
                Err(Error::Config { origin: "--store".into(), why })
            }
        }
    }

    fn settings(&self, name: String) -> podwire_policy_agent::Result<Settings> {
        let policy = self.policy.source(|| self.kubernetes.client_options())?;
        let services = self.services.settings(|| self.kubernetes.client_options())?;
        let prefixes = policy.is_some().then(|| self.policy_allowed_source_prefixes.clone());
        Ok(Settings {
            preference: self.interface.preference(),
            public_ip: self.interface.public_ip,
            public_ipv6: self.interface.public_ipv6,
            firewall: FirewallOptions {
                masquerade: self.ip_masq,
                random_ports: !self.ip_masq_fully_random_disable,
                forward: self.iptables_forward_rules,
                blackhole: self.ip_blackhole_route,
            },
            subnet_file: self.conflist.subnet_file.clone(),
            conflist: self.conflist.conflist(prefixes),
            health: (self.healthz_port != 0)
                .then_some(Listen { ip: self.healthz_ip, port: self.healthz_port }),
            resync: self.resync,
            wireguard_key: self.wireguard_key_file.clone(),
            derived_mac: self.derived_mac,
            set_network_available: self.kubernetes.set_node_network_unavailable,
            policy,
            policy_cut: self.policy.policy_cut,
            services,
            fast_path: self.fast_path.mode(),
            ..Settings::new(name)
        })
    }
}
