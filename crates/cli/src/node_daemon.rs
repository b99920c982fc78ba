//! `podwire node`: the daemon of a node whose pods are routed. What Calico's node agent does, on Calico's own data.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use podwire_agent::calico::Settings;
use podwire_bgp::Bird;
use podwire_kubernetes::ClientOptions;
use podwire_overlay::UplinkPreference;

use crate::addresses::Owner;
use crate::{duration, log, Failure};

pub(crate) const EXAMPLES: &str = "Examples:
  podwire node --store http://10.0.0.1:2379                 blocks and roads, beside Calico's nodes on one etcd
  podwire node --store kubernetes --policy kubernetes       on Calico's custom resources, and pods kept apart by policies
  podwire node --store /var/lib/podwire/ipam.db             several nodes of one machine, or a lab
  podwire node --store kubernetes --bgp                     roads by BGP, spoken by BIRD 2

Pools say what is put around packets (vxlanMode, ipipMode) and whether pods show their own address to the world (natOutgoing);
`podwire ipam pool` makes one. Plugins calico and calico-ipam ask this daemon for addresses. SIGTERM ends it and leaves
roads, leases and BIRD as they are.";

#[derive(Debug, Args)]
pub(crate) struct Node {
    #[command(flatten)]
    owner: Owner,
    /// The interface, or an address of it, at which the other nodes are met; may be repeated
    /// [default: that of the default route].
    #[arg(long, value_name = "NAME|IP")]
    iface: Vec<String>,
    /// The interface whose name or address fits this pattern.
    #[arg(long, value_name = "PATTERN")]
    iface_regex: Vec<String>,
    /// The interface by which this address is reached.
    #[arg(long, value_name = "IP")]
    iface_can_reach: Vec<IpAddr>,
    /// The MTU of the network between the nodes [default: that of the interface].
    #[arg(long, value_name = "BYTES")]
    mtu: Option<u32>,
    /// Where the MTU for pods is written; the plugin reads it where its config has none.
    #[arg(long, value_name = "FILE", default_value = "/var/lib/calico/mtu")]
    mtu_file: PathBuf,
    /// Let BGP bring the roads to pools without a tunnel, and tell routers outside of this node's blocks: BIRD 2 is started, if it does
    /// not run. Peers and filters are Calico's BGPConfiguration, BGPPeer and BGPFilter.
    #[arg(long)]
    bgp: bool,
    /// BIRD 2.
    #[arg(long, value_name = "PROGRAM", default_value = "bird", requires = "bgp")]
    bird: PathBuf,
    /// Where BIRD's config and its control socket are.
    #[arg(long, value_name = "DIR", default_value = "/run/podwire/bird", requires = "bgp")]
    bird_folder: PathBuf,
    /// Where passwords of BGP peers are: what an object calls key KEY of secret NAME is the file DIR/NAME/KEY, as Kubernetes mounts Secrets.
    #[arg(long, value_name = "DIR", requires = "bgp")]
    bgp_passwords: Option<PathBuf>,
    /// Keep pods apart by network policies: kubernetes, or files:FOLDER with policies as YAML or JSON.
    #[arg(long, value_name = "SOURCE", env = "PODWIRE_POLICY", hide_env = true)]
    policy: Option<String>,
    /// Cut connections that stand and that a changed policy no longer allows; else they go on until they end.
    #[arg(long, env = "PODWIRE_POLICY_CUT", hide_env = true, requires = "policy")]
    policy_cut: bool,
    /// How often all is compared with the kernel when nothing was heard.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration::parse)]
    resync: Duration,
    /// Where /healthz, /readyz, /status and /metrics are served.
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    healthz_ip: IpAddr,
    /// At which port; 0 is not at all.
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    healthz_port: u16,
    /// Log as text for people or JSON for programs; RUST_LOG=debug tells more.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log_format: log::Format,
}

impl Node {
    pub(crate) fn run(self) -> Result<(), Failure> {
        self.log_format.start();
        let what = "the node's agent cannot work";
        let failed = |error: &dyn std::fmt::Display| {
            Failure::new(what, podwire_cni_spec::Error::internal(error.to_string()))
        };
        let node = self.owner.name(what)?;
        let policy = self.policy().map_err(|why| failed(&why))?;
        let pods = self.owner.pods(&node, what)?;
        let opener = self.owner.opener();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| failed(&error))?;
        runtime
            .block_on(podwire_agent::calico::run(self.settings(node, policy, pods), opener))
            .map_err(|error| failed(&error))
    }

    fn policy(&self) -> podwire_policy_agent::Result<Option<podwire_policy_agent::Source>> {
        let kubernetes = || ClientOptions::from_kubeconfig(self.owner.kubeconfig());
        self.policy
            .as_deref()
            .map(|written| podwire_policy_agent::Source::parse(written, kubernetes))
            .transpose()
    }

    fn settings(
        self,
        node: String,
        policy: Option<podwire_policy_agent::Source>,
        pods: Option<Arc<dyn podwire_agent_ipc::pods::Cluster>>,
    ) -> Settings {
        let preference = UplinkPreference {
            interfaces: self.iface,
            patterns: self.iface_regex,
            can_reach: self.iface_can_reach,
            node_addresses: Vec::new(),
        };
        let bird = Bird { program: self.bird, dir: self.bird_folder, passwords: self.bgp_passwords };
        let bird = self.bgp.then_some(bird);
        Settings {
            node,
            preference,
            mtu: self.mtu,
            mtu_file: Some(self.mtu_file),
            bird,
            resync: self.resync,
            warm_addresses: self.owner.stock(),
            state_dir: self.owner.state,
            socket: self.owner.socket,
            cluster: pods,
            health: (self.healthz_port != 0).then_some(SocketAddr::new(self.healthz_ip, self.healthz_port)),
            policy,
            policy_cut: self.policy_cut,
        }
    }
}
