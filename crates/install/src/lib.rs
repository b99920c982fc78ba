//! Installs plugins and a network config in the directories of a node's container runtimes, and uninstalls them.
//!
//! Each runtime has a directory of plugins and one of network configs; [`layout`] reads them from the runtime's config. First
//! an [`InstallPlan`] of [`Step`]s is made from the requested files and the [`NodeState`], without changing anything. Then it
//! is applied.
//!
//! Three invariants hold even if the process is killed:
//! - A file appears complete, under its final name, by a rename within its directory. A running plugin is not disturbed, and
//!   a runtime that watches the directory of network configs is notified.
//! - The network config is installed last, after its plugins; it is removed first.
//! - A file is recorded before it is installed ([`Record`]), with the file that it replaces. So the next install or uninstall
//!   knows which files are Podwire's, and leaves a file alone that was changed since.

#![forbid(unsafe_code)]

mod apply;
mod config_dir;
mod dhcp_daemon;
mod error;
mod identity;
pub mod layout;
mod lock;
pub mod network;
mod node_state;
mod plan;
mod record;
mod root;
#[cfg(test)]
mod scratch;

pub use apply::apply;
pub use config_dir::{config_files, ConfigFile, Selection};
pub use dhcp_daemon::{dhcp_sockets, dhcp_warning};
pub use error::Error;
pub use identity::Identity;
pub use layout::{Layout, Runtime};
pub use lock::InstallLock;
pub use node_state::NodeState;
pub use plan::{Content, InstallPlan, Reason, Remark, Step, Target};
pub use record::{Entry, Kind, Record};
pub use root::Root;

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// The directory of the record.
pub const STATE: &str = "/var/lib/podwire/install";
