//! The harness of the black-box suites.
//!
//! A [`Node`] looks like a separate machine to a plugin: a network namespace, and a mount namespace with an empty
//! `/run` and `/var/lib`. A holder process keeps it; its standard input is a pipe of the test. When the test ends or
//! dies, the holder ends, and the node and its pods disappear.
//!
//! The programs under test are those that `make build` put into `dist/`.

mod chain;
mod command_line;
mod depth;
pub mod drivers;
mod facts;
mod lan;
mod leftovers;
mod node;
mod peer;
mod pings;
mod plugin;
mod process;
pub mod strace;
mod talk;
mod twins;

pub use chain::Chain;
pub use command_line::{commands, json_problems, subcommands};
pub use depth::{check_rows, is_whole, sample, seed};
pub use drivers::{can_serve, needs, should_try};
pub use facts::{Facts, Roles};
pub use leftovers::{assert_same, differences};
pub use node::{Node, Pod};
pub use peer::{calicos, flanneld, go_flannel, go_noop, kubernetes_programs};
pub use pings::lost_packets;
pub use plugin::{Invocation, Output};
pub use process::Process;
pub use talk::Listener;
pub use twins::{compare, Case, Difference};

use std::path::PathBuf;

/// The directory of Debian's Go plugins, the peer.
pub const GO: &str = "/usr/lib/cni";

/// The path of a file of the project.
pub fn project(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .join(path)
        .canonicalize()
        .unwrap_or_else(|error| panic!("{path} does not exist ({error}): run `make build` first"))
}

/// The directory of Podwire's plugins.
pub fn ours() -> String {
    project("dist/cni").display().to_string()
}

/// The path of `podwire`.
pub fn podwire() -> String {
    project("dist/podwire").display().to_string()
}

/// All plugin types of Podwire.
pub fn types() -> Vec<String> {
    let mut all: Vec<_> = std::fs::read_dir(project("dist/cni"))
        .expect("dist/cni")
        .map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned())
        .collect();
    all.sort();
    all
}

/// Compiles the Rust code of the guides.
#[cfg(doctest)]
mod guides {
    #[doc = include_str!("../../docs/plugin-authors.md")]
    mod plugin_authors {}

    #[doc = include_str!("../../docs/runtime.md")]
    mod runtime {}
}
