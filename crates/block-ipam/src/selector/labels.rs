//! Labels of objects.

use std::collections::BTreeMap;

/// Labels of a node, a namespace or a pod.
pub type Labels = BTreeMap<String, String>;
