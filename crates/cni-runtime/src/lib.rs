//! What a container runtime needs to put containers on networks: the whole other side of the CNI protocol.
//!
//! An administrator writes networks into a folder ([`ConfigFolder`]; a [`Catalogue`] knows which of them can be used, and
//! a [`Watch`] when that changes). To attach a container, [`Runtime::add`]
//! runs the network's plugins one after the other, hands each the result of the one before, and remembers what
//! it did in a [`cache`]; [`Runtime::del`] runs them backwards with what was remembered. [`Runtime::check`],
//! [`Runtime::gc`] and [`Runtime::status`] ask the plugins whether all is as it was, sweep up what nobody
//! needs any more, and tell whether another container could be attached. [`Runtime::repair`] puts back what is
//! not as it was.
//!
//! ```no_run
//! use podwire_cni_runtime::{ConfigFolder, Identity, Runtime};
//!
//! let network = ConfigFolder::new("/etc/cni/net.d").find("pods")?;
//! let runtime = Runtime::new(["/opt/cni/bin"]);
//! let pod = Identity::new("4f1c2e", "eth0")?.netns("/run/netns/blue");
//!
//! let attachment = runtime.add(&network.list, &pod)?;
//! for ip in &attachment.ips {
//!     println!("{}", ip.address);
//! }
//! runtime.del(&network.list, &pod)?;
//! # Ok::<(), podwire_cni_runtime::Error>(())
//! ```
//!
//! The files and the protocol are those of libcni, so that both can serve the same node. What differs is what
//! happens when something fails:
//!
//! - a bad file in the folder is reported and hides no other network;
//! - an ADD that fails is taken back, the failing plugin included;
//! - an ADD leaves its record before the first plugin runs, so a runtime that is killed half way leaves something
//!   by which DEL and GC find what it made;
//! - a DEL goes on past a plugin that fails, and no broken record can keep it from starting;
//! - a plugin that is too slow is asked to stop, and killed only if it will not;
//! - plugins of this program are called without starting a process ([`Runtime::registry`]).

#![forbid(unsafe_code)]

mod add;
pub mod cache;
mod catalogue;
mod check;
mod del;
mod error;
mod folder;
mod gc;
mod identity;
mod invoke;
mod repair;
mod runtime;
mod version;
mod watch;

pub use cache::{Cache, Listing, Record};
pub use catalogue::{Catalogue, Readiness};
pub use error::{Error, Problem, Result};
pub use folder::{ConfigFolder, Loaded, Network};
pub use gc::Sweep;
pub use identity::Identity;
pub use repair::{Left, PutBack, Repaired};
pub use runtime::{Runtime, Trace};
pub use watch::Watch;
