//! What an agent is told when it is started.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use podwire_overlay::{Firewall, Preference};

use crate::Conflist;

/// Everything that is not the network's own config.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This node's name.
    pub node_name: String,
    /// Which interface the others are met at.
    pub preference: Preference,
    /// The addresses to be told to others, where a router outside translates them.
    pub public: (Option<Ipv4Addr>, Option<Ipv6Addr>),
    /// What the firewall is to do.
    pub firewall: Firewall,
    /// flannel's file, for its plugin.
    pub subnet_file: PathBuf,
    /// The list of plugins for the runtime, if the agent is to write it.
    pub conflist: Option<Conflist>,
    /// Where STATUS of the plugins in the list learns whether pods may come.
    pub readiness_file: PathBuf,
    /// Where plugins tell how long their calls took.
    pub calls_socket: PathBuf,
    /// Where host-local keeps the addresses that are taken, a folder for each network.
    pub addresses_folder: PathBuf,
    /// Where health and metrics are served, if anywhere.
    pub health: Option<SocketAddr>,
    /// How often all is compared when nothing was heard.
    pub resync: Duration,
    /// The secret of this node, with WireGuard.
    pub wireguard_key: PathBuf,
    /// Which nodes the commands of the backend `extension` were run for.
    pub extension_record: PathBuf,
    /// Whether the VXLAN device's hardware address follows from the node's name instead of being remembered.
    pub derived_mac: bool,
    /// Whether Kubernetes is told that the node's network is there.
    pub set_available: bool,
    /// Where policies are known, if they are to be enforced.
    pub policy: Option<podwire_policy_agent::Source>,
    /// Whether connections that policies no longer allow are cut.
    pub policy_cut: bool,
}

impl Settings {
    /// The defaults, which are flannel's where it has some.
    pub fn new(node_name: impl Into<String>) -> Settings {
        Settings {
            node_name: node_name.into(),
            preference: Preference::default(),
            public: (None, None),
            firewall: Firewall::default(),
            subnet_file: "/run/flannel/subnet.env".into(),
            conflist: None,
            readiness_file: podwire_cni_plugin::readiness::FILE.into(),
            calls_socket: podwire_cni_plugin::stopwatch::SOCKET.into(),
            addresses_folder: "/var/lib/cni/networks".into(),
            health: None,
            resync: Duration::from_secs(30),
            wireguard_key: "/run/flannel/wgkey".into(),
            extension_record: "/run/podwire/extension.json".into(),
            derived_mac: false,
            set_available: true,
            policy: None,
            policy_cut: false,
        }
    }
}
