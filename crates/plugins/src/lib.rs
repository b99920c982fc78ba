//! Every CNI plugin of the project, one file or folder each, composed from `kernel` and `ipam`.
//!
//! Modules that several plugins share: [`lease`] gets addresses from the IPAM plugin of the config, [`addresses`]
//! selects those of an interface, [`pod_interface`] configures an interface in a pod, [`inspection`] compares and
//! repairs it, [`masquerade`] is `ipMasq`, [`veth_pair`] connects pods of bridge, ptp and calico, [`subinterface`] is
//! the common part of macvlan, ipvlan, vlan and dummy.

mod address_holder;
pub mod addresses;
mod agent_hooks;
pub mod bandwidth;
pub mod bridge;
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
pub mod keys;
pub mod lease;
pub mod loopback;
pub mod macvlan;
pub mod masquerade;
pub mod noop;
pub mod pod_interface;
mod pod_lock;
mod podwire_program;
pub mod policy;
pub mod portmap;
pub mod ptp;
pub mod sbr;
pub mod static_ipam;
pub mod subinterface;
pub mod tap;
pub mod tuning;
pub mod veth_pair;
pub mod vlan;
pub mod vrf;

pub use agent_hooks::AgentHooks;
use podwire_cni_plugin::{Plugin, Registry};

/// Every plugin. The file name of the program selects one.
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

/// The fingerprint of the sources of these plugins, which is the build id of `podwire-cni`.
pub const FINGERPRINT: &str = env!("PODWIRE_FINGERPRINT");

/// The plugins of this program, with the hooks that connect them to the node's agent.
pub fn registry() -> Registry<'static> {
    Registry::new(PLUGINS, FINGERPRINT).with_hooks(&AgentHooks)
}
