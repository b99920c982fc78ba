//! Objects as they were last read or written here, for the next write.
//!
//! An object is replaced as a whole, with all that others have written into it, so a write needs what was read. It is a shortcut only: what
//! is not kept is read again, and what is out of date is turned back by the server.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

use crate::kind::Kind;

/// How many objects are kept; a full block has 20 KB. A node has fewer blocks and pods than that.
const MOST: usize = 256;

/// Objects by kind and name.
#[derive(Default)]
pub(crate) struct Seen(Mutex<HashMap<(Kind, String), Value>>);

impl Seen {
    pub(crate) fn keep(&self, kind: Kind, name: String, object: Value) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() >= MOST {
            seen.clear();
        }
        seen.insert((kind, name), object);
    }

    pub(crate) fn take(&self, kind: Kind, name: &str) -> Option<Value> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.remove(&(kind, name.to_owned()))
    }
}
