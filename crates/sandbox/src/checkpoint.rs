//! The stored state of a pod, written before the objects that it names are created.

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use podwire_netlink::sys;
use serde::{Deserialize, Serialize};
use serde_json::{json, Map, Value};

use crate::{Process, Spec};

/// The state of one pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Checkpoint {
    /// The version of this format.
    version: u32,
    /// The container id for plugins; unique for ever.
    pub(crate) id: String,
    pub(crate) spec: Spec,
    pub(crate) stage: Stage,
    /// Seconds since 1970.
    pub(crate) created: u64,
    pub(crate) process: Option<Process>,
    /// In the order of their attachment.
    pub(crate) attachments: Vec<PlannedAttachment>,
}

/// The progress of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Stage {
    /// It is being started.
    Starting,
    /// It is complete.
    Ready,
    /// It is being stopped.
    Stopping,
    /// Only this checkpoint is left.
    Stopped,
}

/// An attachment of the pod, done or planned, with all that DEL needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PlannedAttachment {
    pub(crate) network: String,
    pub(crate) ifname: String,
    /// The network's config: the file may change or be removed.
    pub(crate) config: String,
    pub(crate) capabilities: Map<String, Value>,
}

impl Checkpoint {
    pub(crate) fn new(spec: &Spec, attachments: Vec<PlannedAttachment>) -> io::Result<Checkpoint> {
        let id: String = sys::random::<32>()?.iter().map(|byte| format!("{byte:02x}")).collect();
        let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let (spec, stage, process) = (spec.clone(), Stage::Starting, None);
        Ok(Checkpoint { version: 1, id, spec, stage, created, process, attachments })
    }

    pub(crate) fn to_json(&self) -> Value {
        json!(self)
    }
}
