//! The wire between this project and the Linux kernel.
//!
//! The kernel is configured through netlink sockets: a program sends a message ("make a veth pair"),
//! the kernel answers with an acknowledgement or an error number and, since 4.12, a sentence that says
//! what it did not like. This crate holds the blocking, batching [`Socket`], the writer and reader of
//! attributes ([`Message`], [`attr`]), and the messages of the families that a pod network needs:
//!
//! - [`rt`]: links, addresses, neighbours, routes, rules and traffic control (`NETLINK_ROUTE`);
//! - [`nft`]: nf_tables transactions, for every firewall rule and set;
//! - [`ct`]: connection tracking entries;
//! - [`nflog`]: packets that rules of the firewall show to a listener;
//! - [`genl`] and [`wireguard`]: generic netlink, and the one family of it that is spoken here.
//!
//! It knows nothing of pods or plugins: `kernel`, above it, gives these messages their meaning.
//! All `unsafe` code of the project is in one file here, [`sys`].
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
