//! Metadata, selectors and ports, which several kinds of objects have.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Fields that this program does not know.
pub type UnknownFields = BTreeMap<String, Value>;

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// Name, namespace, labels and annotations.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ObjectMeta {
    /// The name.
    pub name: String,
    /// The namespace; empty for cluster-scoped objects.
    pub namespace: String,
    /// The labels.
    pub labels: Labels,
    /// The annotations.
    pub annotations: Annotations,
}

/// The annotations that the policy agent uses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Annotations {
    /// Source networks that a pod claims besides its own addresses: a JSON list. The name is Calico's.
    #[serde(rename = "cni.projectcalico.org/allowedSourcePrefixes")]
    pub allowed_source_prefixes: Option<String>,
}

/// A label selector (`meta/v1`). All conditions must hold; an empty selector selects everything.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LabelSelector {
    /// Labels that must have exactly these values.
    pub match_labels: Labels,
    /// Further conditions.
    pub match_expressions: Vec<Requirement>,
    /// Unknown fields.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

/// A condition of a selector.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Requirement {
    /// The label key.
    pub key: String,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
    pub operator: String,
    /// For `In` and `NotIn`.
    pub values: Vec<String>,
    /// Unknown fields.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

/// A port by number or by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum IntOrString {
    /// A number, which may be out of range.
    Number(i64),
    /// A name.
    Name(String),
}
