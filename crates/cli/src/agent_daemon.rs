//! `podwire agent`: the daemon of a node. Its flags are flanneld's where that has them, with the same environment variables.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use agent::{Chain, Conflist, Settings};
use clap::{Args, ValueEnum};
use cluster::{Embedded, Etcd, EtcdOptions, Kubernetes, KubernetesOptions, Source, StaticList};
use fabric::{Firewall, Preference};
use tracing_subscriber::EnvFilter;

use crate::{duration, Failure};

pub(crate) const EXAMPLES: &str = "Examples:
  podwire agent --kube-subnet-mgr --ip-masq --cni-network flannel      in a cluster, as flanneld
  podwire agent --etcd-endpoints http://10.0.0.1:2379 --ip-masq        with flannel's keys in etcd
  podwire agent --store embedded:/var/lib/podwire/cluster.db           one machine, or a lab
  podwire agent --store list:/etc/podwire/nodes.json                   nodes from a file

The network's config is flannel's net-conf.json: under PREFIX/config in etcd, in the file of --net-config-path with Kubernetes, in
the list of nodes, or given to the embedded store by --net-config-path. When the roads to all nodes are open, /run/flannel/subnet.env is
written, then the list of plugins (--cni-network). SIGTERM ends the agent and leaves the network as it is.";

#[derive(Debug, Args)]
pub(crate) struct Agent {
    /// Where the nodes are known: etcd, kubernetes, embedded:FILE or list:FILE.
    #[arg(long, value_name = "STORE", env = "PODWIRE_STORE", default_value = "etcd", hide_env = true)]
    store: String,
    /// This node's name [default: the host's name].
    #[arg(long, value_name = "NAME", env = "NODE_NAME", hide_env = true)]
    node_name: Option<String>,
    #[command(flatten)]
    etcd: EtcdFlags,
    #[command(flatten)]
    kubernetes: KubernetesFlags,
    #[command(flatten)]
    interface: InterfaceFlags,
    #[command(flatten)]
    announcement: AnnouncementFlags,
    /// Pods reach the world with the node's address.
    #[arg(long, env = "FLANNELD_IP_MASQ", hide_env = true)]
    ip_masq: bool,
    /// Masqueraded connections keep their port if they can.
    #[arg(long, env = "FLANNELD_IP_MASQ_FULLY_RANDOM_DISABLE", hide_env = true)]
    ip_masq_fully_random_disable: bool,
    /// Let pods' packets pass the node's firewall.
    #[arg(long, value_name = "BOOL", env = "FLANNELD_IPTABLES_FORWARD_RULES", hide_env = true)]
    #[arg(default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    iptables_forward_rules: bool,
    /// The VXLAN device's hardware address follows from the node's name.
    #[arg(long)]
    derived_mac: bool,
    /// Where this node's WireGuard key is kept.
    #[arg(
        long,
        value_name = "FILE",
        env = "WIREGUARD_KEY_FILE",
        default_value = "/run/flannel/wgkey",
        hide_env = true
    )]
    wireguard_key_file: PathBuf,
    /// How often all is compared with the kernel when nothing was heard.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration::parse)]
    resync: Duration,
    /// Where /healthz, /readyz, /status and /metrics are served.
    #[arg(long, value_name = "IP", env = "FLANNELD_HEALTHZ_IP", default_value = "0.0.0.0", hide_env = true)]
    healthz_ip: IpAddr,
    /// At which port; 0 is not at all.
    #[arg(long, value_name = "PORT", env = "FLANNELD_HEALTHZ_PORT", default_value_t = 0, hide_env = true)]
    healthz_port: u16,
    /// Log as text for people or JSON for programs; RUST_LOG=debug tells more.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log_format: LogFormat,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "etcd")]
struct EtcdFlags {
    /// Endpoints, tried in this order.
    #[arg(
        long,
        value_name = "URL,URL",
        env = "FLANNELD_ETCD_ENDPOINTS",
        hide_env = true,
        value_delimiter = ','
    )]
    #[arg(default_value = "http://127.0.0.1:4001,http://127.0.0.1:2379")]
    etcd_endpoints: Vec<String>,
    /// What flannel's keys begin with.
    #[arg(
        long,
        value_name = "KEY",
        env = "FLANNELD_ETCD_PREFIX",
        default_value = "/coreos.com/network",
        hide_env = true
    )]
    etcd_prefix: String,
    /// The key to the client's certificate.
    #[arg(long, value_name = "FILE", env = "FLANNELD_ETCD_KEYFILE", hide_env = true)]
    etcd_keyfile: Option<PathBuf>,
    /// The client's certificate.
    #[arg(long, value_name = "FILE", env = "FLANNELD_ETCD_CERTFILE", hide_env = true)]
    etcd_certfile: Option<PathBuf>,
    /// Whom to trust.
    #[arg(long, value_name = "FILE", env = "FLANNELD_ETCD_CAFILE", hide_env = true)]
    etcd_cafile: Option<PathBuf>,
    /// A user of etcd.
    #[arg(long, value_name = "NAME", env = "FLANNELD_ETCD_USERNAME", hide_env = true)]
    etcd_username: Option<String>,
    /// Its password; better given by the environment, FLANNELD_ETCD_PASSWORD.
    #[arg(
        long,
        value_name = "WORD",
        env = "FLANNELD_ETCD_PASSWORD",
        hide_env = true,
        hide_env_values = true
    )]
    etcd_password: Option<String>,
    /// How many minutes before its end a lease is renewed.
    #[arg(
        long,
        value_name = "MINUTES",
        env = "FLANNELD_SUBNET_LEASE_RENEW_MARGIN",
        default_value_t = 60,
        hide_env = true
    )]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1439))]
    subnet_lease_renew_margin: u64,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Kubernetes")]
struct KubernetesFlags {
    /// Nodes are those of Kubernetes: the same as --store kubernetes.
    #[arg(long, env = "FLANNELD_KUBE_SUBNET_MGR", hide_env = true)]
    kube_subnet_mgr: bool,
    /// The API server, if not the cluster's own.
    #[arg(long, value_name = "URL", env = "FLANNELD_KUBE_API_URL", hide_env = true)]
    kube_api_url: Option<String>,
    /// A kubeconfig file.
    #[arg(long, value_name = "FILE", env = "FLANNELD_KUBECONFIG_FILE", hide_env = true)]
    kubeconfig_file: Option<PathBuf>,
    /// What annotations of nodes begin with.
    #[arg(long, value_name = "PREFIX", env = "FLANNELD_KUBE_ANNOTATION_PREFIX", hide_env = true)]
    #[arg(default_value = "flannel.alpha.coreos.com")]
    kube_annotation_prefix: String,
    /// The network's config.
    #[arg(long, value_name = "FILE", env = "FLANNELD_NET_CONFIG_PATH", hide_env = true)]
    #[arg(default_value = "/etc/kube-flannel/net-conf.json")]
    net_config_path: PathBuf,
    /// Tell Kubernetes when the node's network is there.
    #[arg(long, value_name = "BOOL", env = "FLANNELD_SET_NODE_NETWORK_UNAVAILABLE", hide_env = true)]
    #[arg(default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    set_node_network_unavailable: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Interface")]
struct InterfaceFlags {
    /// The interface to the other nodes, by name or address; may be repeated, the first that is there is taken.
    #[arg(long, value_name = "NAME", env = "FLANNELD_IFACE", hide_env = true, value_delimiter = ',')]
    iface: Vec<String>,
    /// The same by a pattern for an address or a name.
    #[arg(long, value_name = "REGEX", env = "FLANNELD_IFACE_REGEX", hide_env = true)]
    iface_regex: Vec<String>,
    /// The same by an address that is reached through it.
    #[arg(long, value_name = "IP", env = "FLANNELD_IFACE_CAN_REACH", hide_env = true)]
    iface_can_reach: Vec<IpAddr>,
    /// The IPv4 address by which others reach this node, if it is not the interface's.
    #[arg(long, value_name = "IP", env = "FLANNELD_PUBLIC_IP", hide_env = true)]
    public_ip: Option<Ipv4Addr>,
    /// The same for IPv6.
    #[arg(long, value_name = "IP", env = "FLANNELD_PUBLIC_IPV6", hide_env = true)]
    public_ipv6: Option<Ipv6Addr>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Announcement")]
struct AnnouncementFlags {
    /// flannel's file for its plugin.
    #[arg(
        long,
        value_name = "FILE",
        env = "FLANNELD_SUBNET_FILE",
        default_value = "/run/flannel/subnet.env",
        hide_env = true
    )]
    subnet_file: PathBuf,
    /// Write a list of plugins for the runtime when the roads are open, and take it away while they cannot be.
    #[arg(long, value_name = "CHAIN", default_value = "none")]
    cni_network: Network,
    /// Where the list is written.
    #[arg(long, value_name = "FILE", default_value = "/etc/cni/net.d/10-podwire.conflist")]
    cni_conflist: PathBuf,
    /// The network's name in it.
    #[arg(long, value_name = "NAME", default_value = "cbr0")]
    cni_network_name: String,
    /// The version of the specification in it.
    #[arg(long, value_name = "VERSION", default_value = "1.0.0")]
    cni_version: String,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Network {
    None,
    Flannel,
    Bridge,
    Ptp,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

impl Agent {
    pub(crate) fn run(self) -> Result<(), Failure> {
        self.log();
        let failed = |error: &dyn std::fmt::Display| {
            Failure::new("the agent cannot work", cni::Error::internal(error.to_string()))
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| failed(&error))?;
        runtime.block_on(async {
            let name = self.name().map_err(|error| failed(&error))?;
            let source = self.source(&name).await.map_err(|error| failed(&error))?;
            agent::run(self.settings(name), source).await.map_err(|error| failed(&error))
        })
    }

    fn log(&self) {
        let filter = EnvFilter::try_from_default_env()
            .unwrap_or_else(|_| EnvFilter::new("info,kube=warn,tower=warn,hyper=warn"));
        let log = tracing_subscriber::fmt().with_env_filter(filter).with_target(false);
        // Whoever reads the log may have gone: that is no reason to end.
        let quiet = || -> Box<dyn Write> { Box::new(std::io::stderr()) };
        let set = match self.log_format {
            LogFormat::Text => log.with_ansi(false).with_writer(quiet).try_init(),
            LogFormat::Json => log.json().with_writer(quiet).try_init(),
        };
        drop(set);
    }

    fn name(&self) -> std::io::Result<String> {
        match &self.node_name {
            Some(name) if !name.is_empty() => Ok(name.clone()),
            _ => Ok(std::fs::read_to_string("/proc/sys/kernel/hostname")?.trim().to_owned()),
        }
    }

    async fn source(&self, name: &str) -> cluster::Result<Source> {
        let (etcd, kubernetes) = (&self.etcd, &self.kubernetes);
        let store = if kubernetes.kube_subnet_mgr { "kubernetes" } else { self.store.as_str() };
        match store.split_once(':') {
            Some(("embedded", file)) => {
                let embedded = Embedded::open(file).await?;
                if let Ok(text) = std::fs::read_to_string(&kubernetes.net_config_path) {
                    embedded.set_network(&text).await?;
                }
                Ok(Source::Embedded(embedded))
            }
            Some(("list", file)) => Ok(Source::Static(StaticList::new(file))),
            None if store == "etcd" => {
                let user = etcd.etcd_username.clone().filter(|name| !name.is_empty());
                let options = EtcdOptions {
                    endpoints: etcd.etcd_endpoints.clone(),
                    prefix: etcd.etcd_prefix.clone(),
                    ca_file: etcd.etcd_cafile.clone(),
                    cert_file: etcd.etcd_certfile.clone(),
                    key_file: etcd.etcd_keyfile.clone(),
                    user: user.map(|name| (name, etcd.etcd_password.clone().unwrap_or_default())),
                    renew_margin: Duration::from_secs(60 * etcd.subnet_lease_renew_margin),
                    ..EtcdOptions::default()
                };
                Ok(Source::Etcd(Etcd::new(options)?))
            }
            None if store == "kubernetes" => {
                let options = KubernetesOptions {
                    api_url: kubernetes.kube_api_url.clone(),
                    kubeconfig: kubernetes.kubeconfig_file.clone(),
                    annotation_prefix: kubernetes.kube_annotation_prefix.clone(),
                    net_conf: kubernetes.net_config_path.clone(),
                    ..KubernetesOptions::new(name)
                };
                Ok(Source::Kubernetes(Box::new(Kubernetes::new(&options).await?)))
            }
            _ => {
                let why = format!("{store:?} is none: write etcd, kubernetes, embedded:FILE or list:FILE");
                Err(cluster::Error::Config { origin: "--store".into(), why })
            }
        }
    }

    fn settings(&self, name: String) -> Settings {
        let (interface, announcement) = (&self.interface, &self.announcement);
        let public = [interface.public_ip.map(IpAddr::V4), interface.public_ipv6.map(IpAddr::V6)];
        let preference = Preference {
            interfaces: interface.iface.clone(),
            patterns: interface.iface_regex.clone(),
            can_reach: interface.iface_can_reach.clone(),
            known_as: public.into_iter().flatten().collect(),
        };
        let chain = match announcement.cni_network {
            Network::None => None,
            Network::Flannel => Some(Chain::Flannel),
            Network::Bridge => Some(Chain::Bridge),
            Network::Ptp => Some(Chain::Ptp),
        };
        Settings {
            preference,
            public: (interface.public_ip, interface.public_ipv6),
            firewall: Firewall {
                masquerade: self.ip_masq,
                random: !self.ip_masq_fully_random_disable,
                forward: self.iptables_forward_rules,
            },
            subnet_file: announcement.subnet_file.clone(),
            conflist: chain.map(|chain| Conflist {
                path: announcement.cni_conflist.clone(),
                name: announcement.cni_network_name.clone(),
                chain,
                version: announcement.cni_version.clone(),
            }),
            health: (self.healthz_port != 0).then_some(SocketAddr::new(self.healthz_ip, self.healthz_port)),
            resync: self.resync,
            wireguard_key: self.wireguard_key_file.clone(),
            derived_mac: self.derived_mac,
            set_available: self.kubernetes.set_node_network_unavailable,
            ..Settings::new(name)
        }
    }
}
