//! The test bench of the black-box suites.
//!
//! A [`Node`] is a machine of its own as far as a plugin can tell: a network namespace, and a mount namespace
//! with an empty `/run` and `/var/lib`. It lives in a holder process whose standard input is a pipe of the
//! test's: when the test ends, by whatever end, the holder does too, and the node and its pods vanish.
//!
//! Programs under test are those that `make build` left in `dist/`.

mod chain;
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

/// Debian's Go plugins: the peer.
pub const GO: &str = "/usr/lib/cni";

/// A file of the project.
pub fn project(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .join(path)
        .canonicalize()
        .unwrap_or_else(|error| panic!("{path} is not there ({error}): run `make build` first"))
}

/// Our plugins.
pub fn ours() -> String {
    project("dist/cni").display().to_string()
}

/// Our hand tool.
pub fn podwire() -> String {
    project("dist/podwire").display().to_string()
}

/// Every plugin type of ours.
pub fn types() -> Vec<String> {
    let mut all: Vec<_> = std::fs::read_dir(project("dist/cni"))
        .expect("dist/cni")
        .map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned())
        .collect();
    all.sort();
    all
}

/// The Rust code of the guides is compiled as it stands there.
#[cfg(doctest)]
mod guides {
    #[doc = include_str!("../../docs/plugin-authors.md")]
    mod plugin_authors {}

    #[doc = include_str!("../../docs/runtime.md")]
    mod runtime {}
}
