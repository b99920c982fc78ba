//! Netlink: the configuration interface of the Linux kernel.
//!
//! A program sends a message ("create a veth pair"), and the kernel answers with an acknowledgement or an errno and,
//! since 4.12, a text that explains the error. This crate contains the blocking, batching [`Socket`], the encoder and
//! decoder of messages and attributes ([`Message`], [`attr`]), and the messages of the netlink families that a pod
//! network needs:
//!
//! - [`rt`]: links, addresses, neighbours, routes, rules and traffic control (`NETLINK_ROUTE`);
//! - [`nft`]: nf_tables transactions, for every firewall rule and set;
//! - [`ct`]: connection tracking entries;
//! - [`nflog`]: packets that firewall rules log;
//! - [`genl`], [`wireguard`] and [`ipvs`]: generic netlink, and its families of WireGuard and IPVS.
//!
//! It knows nothing of pods or plugins: the `kernel` crate uses these messages for that. All `unsafe` code of the
//! project is in the module [`sys`].
//!
//! ```no_run
//! use podwire_netlink::{rt, Socket};
//! let mut route = Socket::route()?;
//! let lo = rt::link::by_name(&mut route, "lo")?;
//! println!("lo has index {} and MTU {}", lo.index, lo.mtu);
//! # Ok::<(), podwire_netlink::Error>(())
//! ```

pub mod attr;
pub mod ct;
mod error;
pub mod genl;
pub mod ipvs;
mod message;
pub mod nflog;
pub mod nft;
pub mod rt;
mod socket;
#[allow(unsafe_code)]
pub mod sys;
pub mod wireguard;

pub use error::{Error, Result};
pub use message::{Batch, Frame, Frames, Message};
pub use socket::Socket;
