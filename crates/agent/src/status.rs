//! What the agent knows of itself, for whoever asks.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;

/// How far it has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// No range yet, or roads that were never opened.
    #[default]
    Starting,
    /// The roads are open.
    Ready,
    /// The node cannot carry pods' traffic.
    Broken,
}

/// All of it.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// This node.
    pub node: String,
    /// How far it has come.
    pub phase: Phase,
    /// The kind of roads.
    pub backend: String,
    /// The addresses of this node's pods.
    pub ranges: Vec<String>,
    /// Where the others meet it: `eth0 192.168.1.7`.
    pub uplinks: Vec<String>,
    /// The largest packet of a pod.
    pub mtu: u32,
    /// How many other nodes have a road.
    pub peers: usize,
    /// Nodes without a road, and why.
    pub refused: Vec<(String, String)>,
    /// Whether the source of nodes answers: `current`, or since when it does not.
    pub source: String,
    /// What is wrong at the moment, each in a sentence.
    pub problems: Vec<String>,
}

/// The status, shared.
#[derive(Clone, Debug, Default)]
pub(crate) struct Board(Arc<Mutex<Status>>);

impl Board {
    pub fn new(node: &str) -> Board {
        let source = "waiting for the first answer".into();
        Board(Arc::new(Mutex::new(Status { node: node.into(), source, ..Status::default() })))
    }

    pub fn write(&self) -> MutexGuard<'_, Status> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn read(&self) -> Status {
        self.write().clone()
    }
}
