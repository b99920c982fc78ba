//! Every CNI plugin of the project, one file each: thin compositions over `kernel` and `ipam`.
//!
//! A plugin reads like the story of what it does to a pod. What several of them share is here too:
//! [`lease`] gets addresses from the IPAM plugin of the config, [`plumbing`] puts addresses and routes on an
//! interface, [`inspection`] compares them again and mends them; [`cable`] is what bridge and ptp connect a pod with,
//! [`subinterface`] what macvlan, ipvlan, vlan and dummy give to it.

mod agent_hooks;
pub mod bandwidth;
pub mod bridge;
pub mod cable;
pub mod calico;
pub mod calico_ipam;
pub mod debug;
pub mod dhcp;
pub mod dummy;
pub mod firewall;
pub mod flannel;
pub mod host_device;
pub mod host_local;
pub mod inspection;
pub mod ipvlan;
pub mod lease;
pub mod loopback;
pub mod macvlan;
pub mod masquerade;
pub mod noop;
pub mod plumbing;
pub mod policy;
pub mod portmap;
pub mod ptp;
pub mod sbr;
pub mod static_ipam;
pub mod subinterface;
pub mod tap;
pub mod tuning;
pub mod vlan;
pub mod vrf;

pub use agent_hooks::AgentHooks;
use podwire_cni_plugin::{Plugin, Registry};

/// Every plugin. The file name under which the program is called picks one.
pub const PLUGINS: &[&dyn Plugin] = &[
    &bandwidth::Bandwidth,
    &bridge::Bridge,
    &calico::Calico,
    &calico_ipam::CalicoIpam,
    &debug::Debug,
    &dhcp::Dhcp,
    &dummy::PLUGIN,
    &firewall::Firewall,
    &flannel::Flannel,
    &host_device::HostDevice,
    &host_local::HostLocal,
    &ipvlan::PLUGIN,
    &loopback::Loopback,
    &macvlan::PLUGIN,
    &noop::Noop,
    &portmap::Portmap,
    &ptp::Ptp,
    &sbr::Sbr,
    &static_ipam::Static,
    &tap::Tap,
    &tuning::Tuning,
    &vlan::PLUGIN,
    &vrf::Vrf,
];

/// Which plugins these are: the build id of the program that holds them.
pub const FINGERPRINT: &str = env!("PODWIRE_FINGERPRINT");

/// The plugins of this program, with the hooks that connect them to the node's agent.
pub fn registry() -> Registry<'static> {
    Registry::new(PLUGINS, FINGERPRINT).with_hooks(&AgentHooks)
}
