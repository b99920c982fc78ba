//! Manifests as users apply them.

use podwire_tests::project;
use serde_json::Value;

/// The objects in a file of the project.
pub fn objects(path: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(project(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    parse(&text)
}

/// The objects in a text of one or more YAML documents.
pub fn parse(text: &str) -> Vec<Value> {
    let parsed = serde_saphyr::from_multiple::<Value>(text);
    let all = parsed.unwrap_or_else(|error| panic!("not YAML: {error}\n{text}"));
    all.into_iter().filter(|one| !one.is_null()).collect()
}

/// The kind and the name of an object.
pub fn title(object: &Value) -> String {
    let word = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    format!("{} {}", word(&object["kind"]), word(&object["metadata"]["name"]))
}

/// Whether an object belongs to this component.
pub fn is_part_of(object: &Value, component: &str) -> bool {
    object["metadata"]["labels"]["app.kubernetes.io/component"] == component
}
