//! Whether the node can carry pod traffic, as the agent publishes it for STATUS.
//!
//! An agent that leaves its conflist in place names a file in it, `"readiness": "/run/podwire/readiness"`. The file contains
//! `ready`, or the reason why the node is not ready. A missing file means that no agent has set up routes since the node
//! booted: `/run` is empty after a boot, while the conflist is still there from before.

use std::fs;
use std::io::ErrorKind;

/// The key in a plugin's config.
pub const KEY: &str = "readiness";
/// The content of the file while the node is ready.
pub const READY: &str = "ready";
/// The default path of the file.
pub const FILE: &str = "/run/podwire/readiness";

/// Reads the file at `path`; the error is the reason why the node is not ready.
pub fn check(path: &str) -> Result<(), String> {
    match fs::read_to_string(path) {
        Ok(text) if text.trim() == READY => Ok(()),
        Ok(text) => Err(text.trim().to_owned()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err("podwire agent has not set up routes since this node booted: is it running?".into())
        }
        Err(error) => Err(error.to_string()),
    }
}
