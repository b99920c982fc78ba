//! How it is, for whoever asks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tracing::{info, warn};

/// How it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Status {
    /// Whether the roads were made at least once since the start.
    pub ready: bool,
    /// Where the others are met.
    pub uplinks: Vec<String>,
    /// The blocks of this node.
    pub blocks: Vec<String>,
    /// How many other nodes have roads.
    pub peers: usize,
    /// How many routes lead to them.
    pub routes: usize,
    /// The largest packet that a pod may send.
    pub mtu: u32,
    /// Who has no road, and why.
    pub refused: Vec<(String, String)>,
    /// The sessions of BGP, and how they are.
    pub sessions: BTreeMap<String, String>,
    /// What is wrong, by who says so.
    pub problems: BTreeMap<&'static str, String>,
}

/// Where the status stands.
#[derive(Clone, Debug, Default)]
pub struct Board(Arc<Mutex<Status>>);

impl Board {
    /// As it is now.
    pub fn read(&self) -> Status {
        self.lock().clone()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Status> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody has a problem, or none any more. It is told once.
    pub(crate) fn problem(&self, whose: &'static str, problem: Option<String>) {
        let mut status = self.lock();
        let before = match &problem {
            Some(text) => status.problems.insert(whose, text.clone()),
            None => status.problems.remove(whose),
        };
        match (before, problem) {
            (before, Some(text)) if before.as_ref() != Some(&text) => warn!("{whose}: {text}"),
            (Some(_), None) => info!("{whose}: all is well again"),
            _ => {}
        }
    }
}
