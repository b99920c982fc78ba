//! What is known of a pod, so that whoever comes next can go on: written before anything is made that it tells of.

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use podwire_netlink::sys;
use serde::{Deserialize, Serialize};
use serde_json::{json, Map, Value};

use crate::{Process, Spec};

/// One pod, at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Checkpoint {
    /// Of this format.
    version: u32,
    /// The container id for its plugins: no other pod ever has it.
    pub(crate) id: String,
    pub(crate) spec: Spec,
    pub(crate) stage: Stage,
    /// Seconds since 1970.
    pub(crate) created: u64,
    pub(crate) process: Option<Process>,
    /// In the order of their attachment.
    pub(crate) attachments: Vec<Plan>,
}

/// How far a pod has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Stage {
    /// It is being made.
    Starting,
    /// All of it is there.
    Ready,
    /// It is being taken apart.
    Stopping,
    /// Nothing is left but this note.
    Stopped,
}

/// A network that the pod is attached to, or was about to be: all that DEL needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) network: String,
    pub(crate) ifname: String,
    /// The network's config: that in the folder may change, or go.
    pub(crate) config: String,
    pub(crate) capabilities: Map<String, Value>,
}

impl Checkpoint {
    pub(crate) fn new(spec: &Spec, attachments: Vec<Plan>) -> io::Result<Checkpoint> {
        let id: String = sys::random::<32>()?.iter().map(|byte| format!("{byte:02x}")).collect();
        let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let (spec, stage, process) = (spec.clone(), Stage::Starting, None);
        Ok(Checkpoint { version: 1, id, spec, stage, created, process, attachments })
    }

    pub(crate) fn to_json(&self) -> Value {
        json!(self)
    }
}
