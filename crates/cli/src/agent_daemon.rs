//! `podwire agent`: the daemon of a node. Its flags are flanneld's where that has them, with the same environment variables.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use ipnet::IpNet;
use podwire_agent::flannel::{Chain, Conflist, NotReady, Settings};
use podwire_kubernetes::ClientOptions;
use podwire_overlay::{FirewallOptions, UplinkPreference};
use podwire_subnets::{Embedded, Etcd, EtcdOptions, Kubernetes, KubernetesOptions, Source, StaticList};

use crate::{duration, log, Failure};

pub(crate) const EXAMPLES: &str = "Examples:
  podwire agent --kube-subnet-mgr --ip-masq --cni-network flannel      in a cluster, as flanneld
  podwire agent --etcd-endpoints http://10.0.0.1:2379 --ip-masq        with flannel's keys in etcd
  podwire agent --store embedded:/var/lib/podwire/cluster.db --net-config-path net-conf.json   one machine, or a lab
  podwire agent --store list:/etc/podwire/nodes.json                   nodes from a file
  podwire agent --kube-subnet-mgr --cni-network bridge --policy kubernetes   and pods kept apart by policies
  podwire agent --retire                                               flanneld runs here again

The network's config is flannel's net-conf.json: under PREFIX/config in etcd, in the file of --net-config-path with Kubernetes, in
the list of nodes, or given to the embedded store by --net-config-path. When the roads to all nodes are open, /run/flannel/subnet.env is
written, then the list of plugins (--cni-network). SIGTERM ends the agent and leaves the network as it is.";

/// Where flannel's manifest puts the network's config.
const NET_CONFIG: &str = "/etc/kube-flannel/net-conf.json";

#[derive(Debug, Args)]
pub(crate) struct Agent {
    /// Where the nodes are known: etcd, kubernetes, embedded:FILE or list:FILE.
    #[arg(long, value_name = "STORE", env = "PODWIRE_STORE", default_value = "etcd", hide_env = true)]
    store: String,
    /// This node's name [default: the host's name].
    #[arg(long, value_name = "NAME", env = "NODE_NAME", hide_env = true)]
    node_name: Option<String>,
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
    /// Keep pods apart by network policies: kubernetes, or files:FOLDER with policies as YAML or JSON.
    #[arg(long, value_name = "SOURCE", env = "PODWIRE_POLICY", hide_env = true)]
    policy: Option<String>,
    /// Cut connections that stand and that a changed policy no longer allows; else they go on until they end.
    #[arg(long, env = "PODWIRE_POLICY_CUT", hide_env = true, requires = "policy")]
    policy_cut: bool,
    /// Networks of which pods may claim addresses to send with, in the list of --cni-network; nothing else may they claim.
    #[arg(
        long,
        value_name = "NETWORK,NETWORK",
        env = "PODWIRE_POLICY_ALLOWED_SOURCE_PREFIXES",
        hide_env = true
    )]
    #[arg(requires = "policy", value_delimiter = ',', value_parser = network)]
    policy_allowed_source_prefixes: Vec<IpNet>,
    /// What is sent to a pod of this node that is not there goes nowhere, instead of out by the default route.
    #[arg(long, env = "FLANNELD_IP_BLACKHOLE_ROUTE", hide_env = true)]
    ip_blackhole_route: bool,
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
    /// Hand the roads over to flanneld, which runs here again, and end: rules and marks of ours go, packets flow on.
    #[arg(long)]
    retire: bool,
    /// Log as text for people or JSON for programs; RUST_LOG=debug tells more.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log_format: log::Format,
    // Last: each brings a heading of its own, under which whatever follows would stand.
    #[command(flatten)]
    etcd: EtcdFlags,
    #[command(flatten)]
    kubernetes: KubernetesFlags,
    #[command(flatten)]
    interface: InterfaceFlags,
    #[command(flatten)]
    announcement: AnnouncementFlags,
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
    #[arg(default_value = NET_CONFIG)]
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
    /// Write a list of plugins for the runtime when the roads are open.
    #[arg(long, value_name = "CHAIN", default_value = "none")]
    cni_network: Network,
    /// While the roads cannot be opened, take the list away; or leave it, and let STATUS of its plugins say why (code 50).
    #[arg(long, value_name = "HOW", default_value = "withdraw")]
    not_ready: Unready,
    /// Where the list is written.
    #[arg(long, value_name = "FILE", default_value = "/etc/cni/net.d/10-podwire.conflist")]
    cni_conflist: PathBuf,
    /// The network's name in it.
    #[arg(long, value_name = "NAME", default_value = "cbr0")]
    cni_network_name: String,
    /// The version of the specification in it [default: 1.0.0, or 1.1.0 with --not-ready status].
    #[arg(long, value_name = "VERSION")]
    cni_version: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Unready {
    Withdraw,
    Status,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Network {
    None,
    Flannel,
    Bridge,
    Ptp,
}

/// As written in a list of plugins; bits behind the prefix would look as if they meant something.
fn network(text: &str) -> Result<IpNet, String> {
    let network = podwire_cni_spec::addr::parse_net(text).map_err(|error| error.msg)?;
    match network == network.trunc() {
        true => Ok(network),
        false => Err(format!("it has bits behind the prefix: write {}", network.trunc())),
    }
}

impl KubernetesFlags {
    /// The network's config for a store that may have it already: only a file that was named must be there.
    fn read_network(&self) -> podwire_subnets::Result<Option<String>> {
        match std::fs::read_to_string(&self.net_config_path) {
            Ok(text) => Ok(Some(text)),
            Err(_) if self.net_config_path == Path::new(NET_CONFIG) => Ok(None),
            Err(error) => Err(podwire_subnets::Error::Config {
                origin: self.net_config_path.display().to_string(),
                why: error.to_string(),
            }),
        }
    }
}

impl AnnouncementFlags {
    fn version(&self) -> &str {
        match (&self.cni_version, self.not_ready) {
            (Some(version), _) => version,
            (None, Unready::Withdraw) => "1.0.0",
            (None, Unready::Status) => "1.1.0",
        }
    }

    /// A runtime does not ask for the STATUS of a list from before 1.1.0: the node would look ready all the time.
    fn check(&self) -> podwire_subnets::Result<()> {
        let wrong = |why: String| podwire_subnets::Error::Config { origin: "--cni-version".into(), why };
        let version = self.version();
        let version = podwire_cni_spec::Version::parse(version)
            .ok_or_else(|| wrong(format!("{version:?} is no version of the specification")))?;
        match self.not_ready == Unready::Status && !version.has_status() {
            true => Err(wrong(format!("STATUS came with 1.1.0: {version} needs --not-ready withdraw"))),
            false => Ok(()),
        }
    }
}

impl Agent {
    pub(crate) fn run(self) -> Result<(), Failure> {
        self.log_format.start();
        let failed = |error: &dyn std::fmt::Display| {
            Failure::new("the agent cannot work", podwire_cni_spec::Error::internal(error.to_string()))
        };
        if self.retire {
            return podwire_agent::flannel::retire().map_err(|error| failed(&error));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| failed(&error))?;
        runtime.block_on(async {
            self.announcement.check().map_err(|error| failed(&error))?;
            self.check_prefixes().map_err(|error| failed(&error))?;
            let name = self.name().map_err(|error| failed(&error))?;
            let source = self.source(&name).await.map_err(|error| failed(&error))?;
            let policy = self.policy().map_err(|error| failed(&error))?;
            podwire_agent::flannel::run(self.settings(name, policy), source)
                .await
                .map_err(|error| failed(&error))
        })
    }

    /// They stand in the list of plugins that this agent writes, and nowhere else.
    fn check_prefixes(&self) -> podwire_subnets::Result<()> {
        let (prefixes, list) = (&self.policy_allowed_source_prefixes, self.announcement.cni_network);
        match (prefixes.is_empty(), list) {
            (false, Network::None) => Err(podwire_subnets::Error::Config {
                origin: "--policy-allowed-source-prefixes".into(),
                why:
                    "without --cni-network no list of plugins is written: say it in the one that you write, \
                      \"policy\": {\"allowedSourcePrefixes\": […]}"
                        .into(),
            }),
            _ => Ok(()),
        }
    }

    fn name(&self) -> std::io::Result<String> {
        match &self.node_name {
            Some(name) if !name.is_empty() => Ok(name.clone()),
            _ => Ok(std::fs::read_to_string("/proc/sys/kernel/hostname")?.trim().to_owned()),
        }
    }

    async fn source(&self, name: &str) -> podwire_subnets::Result<Source> {
        let (etcd, kubernetes) = (&self.etcd, &self.kubernetes);
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
                let options = self.kubernetes_options(name);
                Ok(Source::Kubernetes(Box::new(Kubernetes::new(&options).await?)))
            }
            _ => {
                let why = format!("{store:?} is none: write etcd, kubernetes, embedded:FILE or list:FILE");
                Err(podwire_subnets::Error::Config { origin: "--store".into(), why })
            }
        }
    }

    fn kubernetes_options(&self, name: &str) -> KubernetesOptions {
        let flags = &self.kubernetes;
        KubernetesOptions {
            client: self.client_options(),
            annotation_prefix: flags.kube_annotation_prefix.clone(),
            net_conf: flags.net_config_path.clone(),
            ..KubernetesOptions::new(name)
        }
    }

    fn client_options(&self) -> ClientOptions {
        let flags = &self.kubernetes;
        ClientOptions { kubeconfig: flags.kubeconfig_file.clone(), api_url: flags.kube_api_url.clone() }
    }

    fn policy(&self) -> podwire_policy_agent::Result<Option<podwire_policy_agent::Source>> {
        let read = |written| podwire_policy_agent::Source::parse(written, || self.client_options());
        self.policy.as_deref().map(read).transpose()
    }

    fn settings(&self, name: String, policy: Option<podwire_policy_agent::Source>) -> Settings {
        let (interface, announcement) = (&self.interface, &self.announcement);
        let public = [interface.public_ip.map(IpAddr::V4), interface.public_ipv6.map(IpAddr::V6)];
        let preference = UplinkPreference {
            interfaces: interface.iface.clone(),
            patterns: interface.iface_regex.clone(),
            can_reach: interface.iface_can_reach.clone(),
            node_addresses: public.into_iter().flatten().collect(),
        };
        let chain = match announcement.cni_network {
            Network::None => None,
            Network::Flannel => Some(Chain::Flannel),
            Network::Bridge => Some(Chain::Bridge),
            Network::Ptp => Some(Chain::Ptp),
        };
        Settings {
            preference,
            public_ip: interface.public_ip,
            public_ipv6: interface.public_ipv6,
            firewall: FirewallOptions {
                masquerade: self.ip_masq,
                random_ports: !self.ip_masq_fully_random_disable,
                forward: self.iptables_forward_rules,
                blackhole: self.ip_blackhole_route,
            },
            subnet_file: announcement.subnet_file.clone(),
            conflist: chain.map(|chain| Conflist {
                path: announcement.cni_conflist.clone(),
                name: announcement.cni_network_name.clone(),
                chain,
                version: announcement.version().into(),
                not_ready: match announcement.not_ready {
                    Unready::Withdraw => NotReady::Withdraw,
                    Unready::Status => NotReady::Status,
                },
                policy: policy.is_some().then(|| self.policy_allowed_source_prefixes.clone()),
            }),
            health: (self.healthz_port != 0).then_some(SocketAddr::new(self.healthz_ip, self.healthz_port)),
            resync: self.resync,
            wireguard_key: self.wireguard_key_file.clone(),
            derived_mac: self.derived_mac,
            set_network_available: self.kubernetes.set_node_network_unavailable,
            policy,
            policy_cut: self.policy_cut,
            ..Settings::new(name)
        }
    }
}
