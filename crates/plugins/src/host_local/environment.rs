//! Paths and time that come from the node. Tests have their own.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// What the plugin needs besides the config and the network's folder.
#[derive(Clone, Debug)]
pub(super) struct Environment {
    /// The folder of the indexes. They may be lost at a reboot: they are rebuilt from the networks' folders.
    pub(super) index_root: PathBuf,
    /// The mount point of procfs, which holds the boot id.
    pub(super) proc: PathBuf,
    /// Seconds since 1970.
    pub(super) now: u64,
}

impl Environment {
    pub(super) fn of_this_node() -> Environment {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Environment { index_root: "/run/podwire/host-local".into(), proc: "/proc".into(), now }
    }
}
