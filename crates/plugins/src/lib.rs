//! Every CNI plugin of the project, one file each: thin compositions over `kernel` and `ipam`.
//!
//! A plugin reads like the story of what it does to a pod. What several of them share is here too:
//! [`lease`] gets addresses from the IPAM plugin of the config, [`plumbing`] puts addresses and routes on an
//! interface, [`inspection`] compares them again and mends them.

pub mod bandwidth;
pub mod bridge;
pub mod cable;
pub mod dhcp;
pub mod firewall;
pub mod host_local;
pub mod inspection;
pub mod lease;
pub mod loopback;
pub mod masquerade;
pub mod plumbing;
pub mod portmap;
pub mod ptp;
pub mod sbr;
pub mod static_ipam;
pub mod tuning;

use cni_plugin::Plugin;

/// Every plugin. The file name under which the program is called picks one.
pub const PLUGINS: &[&dyn Plugin] = &[
    &bandwidth::Bandwidth,
    &bridge::Bridge,
    &dhcp::Dhcp,
    &firewall::Firewall,
    &host_local::HostLocal,
    &loopback::Loopback,
    &portmap::Portmap,
    &ptp::Ptp,
    &sbr::Sbr,
    &static_ipam::Static,
    &tuning::Tuning,
];

/// Which plugins these are: the build id of the program that holds them.
pub const FINGERPRINT: &str = env!("PODWIRE_FINGERPRINT");
