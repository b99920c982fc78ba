//! The attributes of an assigned address.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::json::{self, Unknown};
use super::Handle;
use crate::timestamp::Timestamp;

/// The handle that Calico on Windows uses for addresses that belong to the block itself.
const WINDOWS: &str = "windows-reserved-ipam-handle";

/// The holder of an address. Several addresses of a block may share one attribute.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attribute {
    /// The handle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle_id: Option<String>,
    /// Pod, namespace, node and other keys.
    #[serde(default, deserialize_with = "json::null_is_empty", skip_serializing_if = "BTreeMap::is_empty")]
    pub secondary: BTreeMap<String, String>,
    /// When the address was released, if it is in its cooldown.
    #[serde(default, rename = "releasedAt", skip_serializing_if = "Option::is_none")]
    pub released_at: Option<String>,
    #[serde(flatten)]
    unknown: Unknown,
}

impl Attribute {
    /// The attribute of an address in use.
    pub fn new(handle: &str, secondary: BTreeMap<String, String>) -> Attribute {
        Attribute { handle_id: Some(handle.into()), secondary, ..Attribute::default() }
    }

    /// The attribute of an address that is released at `now`.
    pub(super) fn in_cooldown(now: Timestamp) -> Attribute {
        Attribute { released_at: Some(now.rfc3339()), ..Attribute::default() }
    }

    /// The handle, if there is one.
    pub fn handle(&self) -> Option<&str> {
        self.handle_id.as_deref().map(Handle::plain)
    }

    /// Whether the address is released and cannot be assigned again yet.
    pub fn is_in_cooldown(&self) -> bool {
        self.released_at.is_some()
    }

    /// Whether the cooldown is over. An invalid time counts as over: otherwise the address would never become free.
    pub(super) fn is_cooled_down(&self, now: Timestamp, cooldown: u64) -> bool {
        let since = |text: &String| Timestamp::parse_rfc3339(text).map(|then| now.seconds_since(then));
        self.released_at.as_ref().is_some_and(|text| since(text).is_none_or(|seconds| seconds >= cooldown))
    }

    /// Whether the address belongs to the block itself.
    pub(super) fn is_reserved(&self) -> bool {
        self.handle().is_some_and(|handle| handle.eq_ignore_ascii_case(WINDOWS))
    }
}
