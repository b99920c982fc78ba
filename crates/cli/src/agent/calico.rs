//! `podwire agent calico`: does what calico-node does, on Calico's records.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use podwire_agent::calico::Settings;
use podwire_bgp::Bird;
use podwire_http_server::Listen;
use podwire_kubernetes::ClientOptions;
use podwire_overlay::UplinkPreference;

use super::fast_path_flags::FastPathFlags;
use super::policy_flags::PolicyFlags;
use super::services_flags::ServicesFlags;
use crate::failure::Failure;
use crate::ipam::NodeFlags;
use crate::{duration, log};

pub(crate) const EXAMPLES: &str = "Examples:
  podwire agent calico --store http://10.0.0.1:2379            share etcd with Calico's nodes
  podwire agent calico --store kubernetes --policy kubernetes  use Calico's custom resources
  podwire agent calico --store /var/lib/podwire/ipam.db        nodes on one machine, one SQLite file
  podwire agent calico --store kubernetes --bgp                exchange routes by BGP with BIRD 2

The IP pools decide the encapsulation (vxlanMode, ipipMode) and masquerading (natOutgoing); create
one with `podwire ipam pool`. The plugins calico and calico-ipam request addresses from this agent.
SIGTERM ends the agent; routes, leases and BIRD stay as they are.";

#[derive(Debug, Args)]
pub(crate) struct Calico {
    #[command(flatten)]
    node: NodeFlags,
    /// Interface to the other nodes, by name or address; repeatable [default: of the default route].
    #[arg(long, help_heading = "Interface", value_name = "NAME|IP")]
    iface: Vec<String>,
    /// Interface whose name or address matches this regular expression; repeatable.
    #[arg(long, help_heading = "Interface", value_name = "REGEX")]
    iface_regex: Vec<String>,
    /// Interface that has the route to this address; repeatable.
    #[arg(long, help_heading = "Interface", value_name = "IP")]
    iface_can_reach: Vec<IpAddr>,
    /// MTU of the network between the nodes [default: of the interface].
    #[arg(long, help_heading = "Interface", value_name = "BYTES")]
    mtu: Option<u32>,
    /// File for the pod MTU, which the calico plugin reads if its config has none.
    #[arg(long, help_heading = "Interface", value_name = "FILE", default_value = "/var/lib/calico/mtu")]
    mtu_file: PathBuf,
    /// Exchange routes by BGP, with BIRD 2 and Calico's BGPConfiguration, BGPPeer and BGPFilter.
    #[arg(long, help_heading = "BGP")]
    bgp: bool,
    /// The BIRD 2 program; the agent starts it if it does not run.
    #[arg(long, help_heading = "BGP", value_name = "PROGRAM", default_value = "bird", requires = "bgp")]
    bird: PathBuf,
    /// Directory of BIRD's config and control socket.
    #[arg(
        long,
        help_heading = "BGP",
        value_name = "DIR",
        default_value = "/run/podwire/bird",
        requires = "bgp"
    )]
    bird_dir: PathBuf,
    /// Directory of mounted Secrets with BGP passwords: key KEY of secret NAME is DIR/NAME/KEY.
    #[arg(long, help_heading = "BGP", value_name = "DIR", requires = "bgp")]
    bgp_passwords: Option<PathBuf>,
    #[command(flatten)]
    policy: PolicyFlags,
    #[command(flatten)]
    services: ServicesFlags,
    #[command(flatten)]
    fast_path: FastPathFlags,
    /// Time between two full comparisons with the kernel.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration::parse)]
    resync: Duration,
    /// Address for health and metrics in addition to 127.0.0.1 and ::1; 0.0.0.0 or :: for all.
    #[arg(long, help_heading = "Health", value_name = "IP")]
    healthz_ip: Option<IpAddr>,
    /// Port of /healthz, /readyz, /metrics and /status, on loopback; 0 disables the server.
    #[arg(long, help_heading = "Health", value_name = "PORT", default_value_t = 0)]
    healthz_port: u16,
    /// Log format; RUST_LOG=debug logs more.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log_format: log::Format,
}

impl Calico {
    pub(super) fn run(self) -> Result<(), Failure> {
        self.log_format.start();
        let what = "podwire agent calico cannot run";
        let failed = |error: &dyn std::fmt::Display| {
            Failure::new(what, podwire_cni_spec::Error::internal(error.to_string()))
        };
        let opener = self.node.opener();
        let settings = self.settings(what)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| failed(&error))?;
        runtime.block_on(podwire_agent::calico::run(settings, opener)).map_err(|error| failed(&error))
    }

    fn settings(self, what: &str) -> Result<Settings, Failure> {
        let node = self.node.name(what)?;
        let kubernetes = || ClientOptions::from_kubeconfig(self.node.kubeconfig());
        let failed = |error: podwire_policy_agent::Error| {
            Failure::new(what, podwire_cni_spec::Error::internal(error.to_string()))
        };
        let policy = self.policy.source(kubernetes).map_err(failed)?;
        let services = self.services.settings(kubernetes).map_err(failed)?;
        let pods = self.node.pods(&node, what)?;
        let preference = UplinkPreference {
            interfaces: self.iface,
            patterns: self.iface_regex,
            can_reach: self.iface_can_reach,
            node_addresses: Vec::new(),
        };
        let bird = Bird { program: self.bird, dir: self.bird_dir, passwords: self.bgp_passwords };
        Ok(Settings {
            node,
            preference,
            mtu: self.mtu,
            mtu_file: Some(self.mtu_file),
            bird: self.bgp.then_some(bird),
            resync: self.resync,
            warm_addresses: self.node.warm_addresses(),
            state_dir: self.node.state,
            socket: self.node.socket,
            cluster: pods,
            health: (self.healthz_port != 0)
                .then_some(Listen { ip: self.healthz_ip, port: self.healthz_port }),
            policy,
            policy_cut: self.policy.policy_cut,
            services,
            fast_path: self.fast_path.mode(),
        })
    }
}
