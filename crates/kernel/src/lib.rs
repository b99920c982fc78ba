//! What a pod network needs from one Linux host, a device or verb a file.
//!
//! A [`Host`] is a set of netlink sockets in one network [`Netns`]: the node has one, each pod has one.
//! [`veth`], [`bridge`], [`ifb`], [`tap`], [`vrf`] and [`child`] (with [`macvlan`], [`ipvlan`] and [`vlan`]) make pods' devices, born
//! where they will live, never moved; [`tunnel`] (with [`vxlan`] and [`ipip`]) makes those that lead to other nodes; [`custody`] hands over those that were there; [`shaping`] limits them, [`sysctl`] turns
//! the knobs, [`firewall`] holds the nftables idioms, [`detached`] deletes
//! without waiting for the kernel's dust to settle, [`LinkConfig`] are what a link may lose on the way, and [`Undo`] takes back
//! what a failed step left.
//!
//! Nothing here runs a program, and nothing here knows of CNI.

pub mod bridge;
pub mod child;
pub mod detached;
mod error;
pub mod firewall;
mod host;
pub mod ifb;
pub mod ipip;
pub mod ipvlan;
mod link_config;
pub mod mac;
pub mod macvlan;
pub mod netns;
mod owner;
pub mod shaping;
pub mod sysctl;
pub mod tap;
pub mod tunnel;
mod undo;
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
