//! The runtime side of the CNI protocol: what libcni is in Go.
//!
//! An administrator writes network configs into a directory ([`ConfigFolder`]; a [`Catalogue`] knows which of them can be used,
//! and a [`Watch`] reports when that changes). [`Runtime::add`] attaches a container: it runs the network's plugins in order,
//! passes each the result of the one before, and records the attachment in a [`cache`]. [`Runtime::del`] runs them backwards
//! with the recorded result. [`Runtime::check`] compares an attachment with the result of its ADD, [`Runtime::gc`] removes
//! attachments that are no longer valid, [`Runtime::status`] tells whether an ADD could succeed, and [`Runtime::repair`] repairs
//! what CHECK finds.
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
//! The files and the protocol are those of libcni, so that both can serve the same node. The error handling differs:
//!
//! - an invalid file in the directory is reported and hides no other network;
//! - a failed ADD is undone, including the failing plugin;
//! - an ADD writes its record before the first plugin runs, so that DEL and GC find what a killed runtime made;
//! - a DEL goes on past a failing plugin, and an invalid record does not prevent it;
//! - a plugin that is too slow gets SIGTERM, and SIGKILL only if it does not end;
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
mod lint;
mod repair;
mod runtime;
mod version;
mod watch;

pub use cache::{Cache, Listing, Record};
pub use catalogue::{Catalogue, Readiness};
pub use error::{Error, Problem, Result};
pub use folder::{ConfigFolder, Loaded, Network};
pub use gc::GcReport;
pub use identity::Identity;
pub use lint::Warning;
pub use repair::{Difference, Remaining, RepairReport};
pub use runtime::{Runtime, Trace};
pub use watch::Watch;
