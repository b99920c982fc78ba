//! The objects of the Kubernetes API, as far as they matter to policies.
//!
//! Of policies every field is read, and those that nobody knows are kept apart ([`Unknown`]), so that a user hears of a
//! typing error. Of pods, namespaces and nodes only what policies look at is read.

mod cluster_network_policy;
mod network_policy;
mod objects;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use cluster_network_policy::*;
pub use network_policy::*;
pub use objects::*;

/// Fields that this program does not know.
pub type Unknown = BTreeMap<String, Value>;

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// Name, namespace, labels and annotations.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ObjectMeta {
    /// Its name.
    pub name: String,
    /// Where it lives; empty for what lives in none.
    pub namespace: String,
    /// Its labels.
    pub labels: Labels,
    /// Its annotations.
    pub annotations: Annotations,
}

/// Annotations that say something to a data plane.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Annotations {
    /// What a pod wishes to send with besides its own addresses: a JSON list of networks. The name is Calico's.
    #[serde(rename = "cni.projectcalico.org/allowedSourcePrefixes")]
    pub allowed_source_prefixes: Option<String>,
}

/// A label selector as it was written (`meta/v1`): all of its conditions must hold, and an empty one selects all.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LabelSelector {
    /// Labels with exactly these values.
    pub match_labels: Labels,
    /// Further conditions.
    pub match_expressions: Vec<Requirement>,
    /// Fields that nobody knows.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// One condition of a selector.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Requirement {
    /// The label.
    pub key: String,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
    pub operator: String,
    /// For `In` and `NotIn`.
    pub values: Vec<String>,
    /// Fields that nobody knows.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// A port by number or by name.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum IntOrString {
    /// A number, possibly a wrong one.
    Number(i64),
    /// A name.
    Name(String),
}

/// `null` means absent, as in Go: such members vanish. A `null` in a list is an object without fields.
pub(crate) fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(members) => {
            let kept = members.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(key, value)| (key, without_nulls(value))).collect())
        }
        Value::Array(items) => {
            let whole = |item: Value| {
                if item.is_null() {
                    Value::Object(Default::default())
                } else {
                    without_nulls(item)
                }
            };
            Value::Array(items.into_iter().map(whole).collect())
        }
        other => other,
    }
}
