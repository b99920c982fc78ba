//! Operations on one Linux host that a pod network needs.
//!
//! A [`Host`] is a set of netlink sockets in one network namespace ([`Netns`]): of the node, or of a pod.
//!
//! - Devices of pods: [`veth`], [`bridge`], [`ifb`], [`tap`], [`vrf`], and [`child`] (with [`macvlan`], [`ipvlan`],
//!   [`vlan`]). They are created in their final namespace and never moved; [`Host::move_link`] is for existing devices
//!   of the node.
//! - Devices to other nodes: [`tunnel`] (with [`vxlan`] and [`ipip`]).
//! - [`shaping`] limits traffic, [`sysctl`] reads and writes sysctls, [`firewall`] has the nftables features.
//! - [`detached`] deletes without waiting for the kernel's cleanup, [`LinkConfig`] saves and restores addresses and
//!   routes of a link, and [`Undo`] reverts the steps of a failed operation.
//!
//! This crate executes no programs and knows no CNI.

mod error;
mod host;
mod link_config;
mod owner;
mod undo;

pub mod bridge;
pub mod child;
pub mod detached;
pub mod fast_path;
pub mod firewall;
pub mod ifb;
pub mod ipip;
pub mod ipvlan;
pub mod mac;
pub mod macvlan;
pub mod netns;
pub mod shaping;
pub mod sysctl;
pub mod tap;
pub mod tunnel;
pub mod veth;
pub mod vlan;
pub mod vrf;
pub mod vxlan;

pub use error::{Error, Result};
pub use host::Host;
pub use link_config::LinkConfig;
pub use mac::Mac;
pub use netns::Netns;
pub use owner::Owner;
pub use podwire_netlink::rt;
pub use podwire_netlink::rt::link::Link;
pub use undo::Undo;
