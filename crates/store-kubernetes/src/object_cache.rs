//! A cache of objects as they were last read or written, for the next write.
//!
//! A write replaces a whole object, with everything that other clients have written into it, so it needs the object
//! that was read. The cache only saves a request: a missing object is read again, and the server refuses an outdated
//! one.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

use crate::kind::Kind;

/// The maximum number of objects. A full block has 20 KB, and a node has fewer blocks and pods.
const MAX_OBJECTS: usize = 256;

/// Objects by kind and name.
#[derive(Default)]
pub(crate) struct ObjectCache(Mutex<HashMap<(Kind, String), Value>>);

impl ObjectCache {
    pub(crate) fn put(&self, kind: Kind, name: String, object: Value) {
        let mut objects = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if objects.len() >= MAX_OBJECTS {
            objects.clear();
        }
        objects.insert((kind, name), object);
    }

    pub(crate) fn take(&self, kind: Kind, name: &str) -> Option<Value> {
        let mut objects = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        objects.remove(&(kind, name.to_owned()))
    }
}
