//! Whether the node can carry traffic at all, in the words of the agent that makes its roads.
//!
//! An agent that leaves its list of plugins where it is names a file in it, `"readiness": "/run/podwire/readiness"`. STATUS looks
//! there before it asks the plugin: `ready`, or the reason why not. A file that is missing means that no agent has opened the
//! roads since the node was started: `/run` is empty then, and the list is still there from before.

use std::fs;
use std::io::ErrorKind;

use podwire_cni_spec::{code, json};
use serde_json::Value;

use crate::{Request, Result};

/// The key in a plugin's config.
pub const KEY: &str = "readiness";
/// The file's only word while pods may come.
pub const READY: &str = "ready";
/// Where the file is, if nobody says otherwise.
pub const FILE: &str = "/run/podwire/readiness";

/// Fails with code 50 (the spec's "not available") while the agent says so.
pub(crate) fn check(req: &Request<'_>) -> Result<()> {
    let Some(path) = json::get(&req.config, KEY).and_then(Value::as_str) else { return Ok(()) };
    let why = match fs::read_to_string(path) {
        Ok(text) if text.trim() == READY => return Ok(()),
        Ok(text) => text.trim().to_owned(),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            "podwire agent flannel has not opened the roads since this node was started: is it running?"
                .into()
        }
        Err(error) => error.to_string(),
    };
    let text = "the node cannot carry pods' traffic";
    Err(podwire_cni_spec::Error::new(code::NOT_AVAILABLE, text).with_details(format!("{path}: {why}")).into())
}
