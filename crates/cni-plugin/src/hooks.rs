//! The extension point of the SDK: code of the program, not of a plugin, that runs around every call.

use std::time::Duration;

use serde_json::Value;

use crate::{Command, Plugin, Result};

/// Code that runs before and after the plugins of a [`Registry`](crate::Registry), for example to enforce a rule that
/// all plugins share or to record how long calls take. It also runs around plugins that are called in-process by a
/// runtime or another plugin.
pub trait Hooks: Sync {
    /// Runs before the plugin, after the request has been validated. An error is the answer to the request: the
    /// plugin is not called.
    fn before(&self, plugin: &dyn Plugin, command: Command, config: &Value) -> Result<()> {
        let _ = (plugin, command, config);
        Ok(())
    }

    /// Runs after an ADD or DEL. `code` is the CNI error code, or 0.
    fn after(&self, plugin: &dyn Plugin, command: Command, duration: Duration, code: u32) {
        let _ = (plugin, command, duration, code);
    }
}

/// Does nothing.
#[derive(Clone, Copy, Debug)]
pub struct NoHooks;

impl Hooks for NoHooks {}
