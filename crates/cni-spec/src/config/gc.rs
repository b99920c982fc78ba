//! The attachments that a GC request declares valid.

use serde::{Deserialize, Serialize};
use serde_json::{json, Map, Value};

use crate::{json, Error};

/// The key of the current specification, and the one that the release of 1.1.0 had.
const KEYS: [&str; 2] = ["cni.dev/valid-attachments", "cni.dev/attachments"];

/// A container's interface whose resources must survive GC.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ValidAttachment {
    /// The container.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// Its interface.
    pub ifname: String,
}

/// The valid attachments of a GC request, under either of the two keys (code 7 if they are invalid: a guess
/// could delete what pods still use).
///
/// `None` if neither key exists or both are null. That is not an empty list: a runtime that means "nothing is valid" sends `[]`,
/// although the reference runtime has also sent null.
pub fn valid_attachments(config: &Value) -> Result<Option<Vec<ValidAttachment>>, Error> {
    let Some((key, list)) = KEYS.iter().find_map(|key| json::get(config, key).map(|list| (key, list))) else {
        return Ok(None);
    };
    json::decode_under(&[key], list).map(Some)
}

/// Writes the attachments that must survive into a GC request, under both keys.
pub fn set_valid_attachments<'a>(
    config: &mut Map<String, Value>,
    valid: impl IntoIterator<Item = &'a ValidAttachment>,
) {
    let valid: Value = valid.into_iter().map(|one| json!(one)).collect();
    for key in KEYS {
        json::set(config, key, valid.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code;

    #[test]
    fn either_key_is_read_and_the_current_one_wins() {
        let old = json!([{"containerID": "old", "ifname": "eth0"}]);
        let new = json!([{"containerID": "new", "ifname": "eth0"}]);
        let first = |v: Value| valid_attachments(&v).unwrap().unwrap()[0].container_id.clone();
        assert_eq!(first(json!({"cni.dev/attachments": old})), "old");
        assert_eq!(first(json!({"cni.dev/attachments": old, "cni.dev/valid-attachments": new})), "new");
        assert_eq!(first(json!({"cni.dev/attachments": old, "cni.dev/valid-attachments": null})), "old");
    }

    #[test]
    fn absent_is_not_empty() {
        assert_eq!(valid_attachments(&json!({"name": "x"})), Ok(None));
        assert_eq!(valid_attachments(&json!({"cni.dev/valid-attachments": null})), Ok(None));
        assert_eq!(valid_attachments(&json!({"cni.dev/valid-attachments": []})), Ok(Some(vec![])));
    }

    #[test]
    fn an_incomplete_attachment_is_an_error() {
        let error = valid_attachments(&json!({"cni.dev/attachments": [{"containerID": "a"}]})).unwrap_err();
        assert_eq!(error.code, code::INVALID_CONFIG);
        assert_eq!(error.msg, "cni.dev/attachments[0]: missing field `ifname`");
        for bad in [json!({}), json!("x"), json!([null]), json!([1])] {
            assert!(valid_attachments(&json!({"cni.dev/attachments": bad})).is_err());
        }
    }
}
