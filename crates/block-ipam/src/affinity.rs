//! A node's claim to a block.

use serde::{Deserialize, Serialize};

use super::json::{self, Unknown};
use super::record::Value;

/// How far a claim has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// The node wants the block. It owns nothing yet: no route follows from it.
    Pending,
    /// The block is the node's: the block itself says so too.
    Confirmed,
    /// The block is being given up, or was found empty and is being taken away. No route follows from it.
    PendingDeletion,
}

/// What stands under the key of a node and a block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Affinity {
    /// How far the claim has come.
    pub state: State,
    #[serde(default)]
    deleted: bool,
    #[serde(flatten)]
    unknown: Unknown,
}

impl Affinity {
    /// A claim that begins.
    pub fn pending() -> Affinity {
        Affinity { state: State::Pending, deleted: false, unknown: Unknown::new() }
    }
}

impl Value for Affinity {
    /// An old Calico wrote nothing at all for a block that it had.
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
    fn what_others_wrote_is_kept() {
        let text = r#"{"state":"confirmed","deleted":false,"type":"host"}"#;
        assert_eq!(Affinity::decode(text.as_bytes()).unwrap().encode().unwrap(), text.as_bytes());
    }
}
