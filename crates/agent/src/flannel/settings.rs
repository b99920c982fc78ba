//! Settings of flannel mode that are not in the network config.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

use podwire_http_server::Listen;
use podwire_overlay::{FirewallOptions, UplinkPreference};

use crate::fast_path::FastPathMode;
use crate::flannel::conflist::Conflist;
use crate::services::ServicesSettings;

/// The settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This node's name.
    pub node_name: String,
    /// How the interface to the other nodes is chosen.
    pub preference: UplinkPreference,
    /// The IPv4 address that other nodes use, if a router outside translates it.
    pub public_ip: Option<Ipv4Addr>,
    /// The IPv6 address that other nodes use, if a router outside translates it.
    pub public_ipv6: Option<Ipv6Addr>,
    /// The rules that the agent writes.
    pub firewall: FirewallOptions,
    /// flannel's `subnet.env`, for its plugin.
    pub subnet_file: PathBuf,
    /// The conflist for the runtime, if the agent writes it.
    pub conflist: Option<Conflist>,
    /// The file from which STATUS of the conflist's plugins reads whether the node is ready.
    pub readiness_file: PathBuf,
    /// The datagram socket to which plugins report the duration of their calls.
    pub plugin_calls_socket: PathBuf,
    /// host-local's directory of allocated addresses, with a directory for each network.
    pub host_local_dir: PathBuf,
    /// Where health and metrics are served, if they are.
    pub health: Option<Listen>,
    /// The interval between reconciles without a cause.
    pub resync: Duration,
    /// The file of this node's WireGuard private key.
    pub wireguard_key: PathBuf,
    /// The file that lists the nodes for which commands of the backend `extension` were run.
    pub extension_record: PathBuf,
    /// Whether the MAC address of the VXLAN device is derived from the node's name instead of the registered one.
    pub derived_mac: bool,
    /// Whether the agent sets the node's condition `NetworkUnavailable` to false in Kubernetes.
    pub set_network_available: bool,
    /// The source of policies, if the agent enforces them.
    pub policy: Option<podwire_policy_agent::Source>,
    /// Whether connections that policies no longer allow are closed.
    pub policy_cut: bool,
    /// The Services, if the agent serves them.
    pub services: Option<ServicesSettings>,
    /// Whether connections may take the fast path.
    pub fast_path: FastPathMode,
}

impl Settings {
    /// The defaults, which are flannel's where it has the setting.
    pub fn new(node_name: impl Into<String>) -> Settings {
        Settings {
            node_name: node_name.into(),
            preference: UplinkPreference::default(),
            public_ip: None,
            public_ipv6: None,
            firewall: FirewallOptions::default(),
            subnet_file: "/run/flannel/subnet.env".into(),
            conflist: None,
            readiness_file: podwire_agent_ipc::readiness::FILE.into(),
            plugin_calls_socket: podwire_agent_ipc::calls::SOCKET.into(),
            host_local_dir: "/var/lib/cni/networks".into(),
            health: None,
            resync: Duration::from_secs(30),
            wireguard_key: "/run/flannel/wgkey".into(),
            extension_record: "/run/podwire/extension.json".into(),
            derived_mac: false,
            set_network_available: true,
            policy: None,
            policy_cut: false,
            services: None,
            fast_path: FastPathMode::default(),
        }
    }
}
