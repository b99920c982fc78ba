//! The affinity of a node with a block.

use serde::{Deserialize, Serialize};

use super::json::{self, Unknown};
use super::record::Value;

/// The state of an affinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// The node claims the block. It does not own it yet, and no route is installed.
    Pending,
    /// The node owns the block, and the block names the node.
    Confirmed,
    /// The block is being released, or reclaimed because it is empty. No route is installed.
    PendingDeletion,
}

/// The record of a node and a block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Affinity {
    /// The state.
    pub state: State,
    #[serde(default)]
    deleted: bool,
    #[serde(flatten)]
    unknown: Unknown,
}

impl Affinity {
    /// A new affinity.
    pub fn pending() -> Affinity {
        Affinity { state: State::Pending, deleted: false, unknown: Unknown::new() }
    }
}

impl Value for Affinity {
    /// Old versions of Calico wrote an empty value for a confirmed affinity.
    fn decode(bytes: &[u8]) -> Result<Affinity, String> {
        if bytes.is_empty() {
            return Ok(Affinity { state: State::Confirmed, ..Affinity::pending() });
        }
        serde_json::from_slice(bytes).map_err(|error| error.to_string())
    }

    fn encode(&self) -> Result<Vec<u8>, String> {
        json::encode(self).map_err(|error| error.to_string())
    }

    fn is_deleted(&self) -> bool {
        self.deleted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_calicos() {
        let written =
            |state| String::from_utf8(Affinity { state, ..Affinity::pending() }.encode().unwrap()).unwrap();
        assert_eq!(written(State::Pending), r#"{"state":"pending","deleted":false}"#);
        assert_eq!(written(State::Confirmed), r#"{"state":"confirmed","deleted":false}"#);
        assert_eq!(written(State::PendingDeletion), r#"{"state":"pendingDeletion","deleted":false}"#);
        assert_eq!(Affinity::decode(b"").unwrap().state, State::Confirmed);
        assert!(Affinity::decode(br#"{"state":"pending","deleted":true}"#).unwrap().is_deleted());
    }

    #[test]
    fn unknown_fields_are_kept() {
        let text = r#"{"state":"confirmed","deleted":false,"type":"host"}"#;
        assert_eq!(Affinity::decode(text.as_bytes()).unwrap().encode().unwrap(), text.as_bytes());
    }
}
