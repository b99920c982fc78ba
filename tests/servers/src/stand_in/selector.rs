//! What a list or a watch selects: `labelSelector` and `fieldSelector`.

use std::collections::BTreeMap;

use serde_json::Value;

/// The objects that a request selects. Of labels it knows `!key`, of fields `path=value` and `path!=value`.
#[derive(Default)]
pub(super) struct Selector {
    absent_labels: Vec<String>,
    /// A path of the object, a value, and whether both must be equal.
    fields: Vec<(Vec<String>, String, bool)>,
}

impl Selector {
    pub fn of(query: &BTreeMap<String, String>) -> Selector {
        let terms = |name: &str| {
            let terms = query.get(name).into_iter().flat_map(|text| text.split(','));
            terms.filter(|term| !term.is_empty()).map(String::from).collect::<Vec<_>>()
        };
        let label = |term: String| {
            term.strip_prefix('!').unwrap_or_else(|| panic!("labelSelector {term:?}")).to_owned()
        };
        let field = |term: String| {
            let (path, value) = term.split_once('=').unwrap_or_else(|| panic!("fieldSelector {term:?}"));
            let (path, equal) = path.strip_suffix('!').map_or((path, true), |path| (path, false));
            (path.split('.').map(String::from).collect(), value.trim_start_matches('=').to_owned(), equal)
        };
        Selector {
            absent_labels: terms("labelSelector").into_iter().map(label).collect(),
            fields: terms("fieldSelector").into_iter().map(field).collect(),
        }
    }

    pub fn matches(&self, object: &Value) -> bool {
        let has = |label: &String| !object["metadata"]["labels"][label].is_null();
        let fits = |(path, value, equal): &(Vec<String>, String, bool)| {
            let found = path.iter().fold(object, |object, part| &object[part]);
            (found.as_str().unwrap_or_default() == value) == *equal
        };
        !self.absent_labels.iter().any(has) && self.fields.iter().all(fits)
    }

    /// The event for a watch of this selection: a change can bring an object into it, or out of it. `None` is no event.
    /// An object that leaves is shown as it was, with the new revision.
    pub fn event(
        &self,
        kind: &'static str,
        before: Option<&Value>,
        object: &Value,
    ) -> Option<(&'static str, Value)> {
        if kind == "BOOKMARK" {
            return Some((kind, object.clone()));
        }
        let matches = self.matches(object);
        let was_there = before.map_or(kind != "ADDED" && matches, |before| self.matches(before));
        match (was_there, matches && kind != "DELETED") {
            (true, true) => Some(("MODIFIED", object.clone())),
            (false, true) => Some(("ADDED", object.clone())),
            (true, false) => {
                let mut last = before.unwrap_or(object).clone();
                last["metadata"]["resourceVersion"] = object["metadata"]["resourceVersion"].clone();
                Some(("DELETED", last))
            }
            (false, false) => None,
        }
    }
}

/// The text of a query's value, whose bytes may be written as `%3D`.
pub(super) fn decode(text: &str) -> String {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        match part.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                bytes.extend(&part.as_bytes()[2..]);
            }
            None => bytes.extend(["%", part].concat().bytes()),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_change_moves_an_object_into_and_out_of_a_selection() {
        let written = "%21other.example%2Fproxy";
        let query = [("labelSelector", decode(written)), ("fieldSelector", "spec.clusterIP!=None".into())];
        let selector = Selector::of(&query.map(|(name, text)| (name.to_owned(), text)).into());
        let object = |label: &str, ip: &str| json!({ "metadata": { "labels": { label: "x" } }, "spec": { "clusterIP": ip } });
        let [plain, labelled, headless] =
            [object("app", "10.0.0.1"), object("other.example/proxy", "10.0.0.1"), object("app", "None")];
        let cases = [
            ("ADDED", None, &plain, Some("ADDED")),
            ("ADDED", None, &labelled, None),
            ("ADDED", None, &headless, None),
            ("MODIFIED", Some(&plain), &plain, Some("MODIFIED")),
            ("MODIFIED", Some(&plain), &labelled, Some("DELETED")),
            ("MODIFIED", Some(&headless), &plain, Some("ADDED")),
            ("DELETED", Some(&plain), &plain, Some("DELETED")),
            ("DELETED", Some(&labelled), &labelled, None),
        ];
        for (kind, before, object, expected) in cases {
            let found = selector.event(kind, before, object);
            assert_eq!(found.as_ref().map(|(kind, _)| *kind), expected, "{kind} {before:?} {object}");
            let shown = found.map(|(_, shown)| shown["metadata"]["labels"].clone());
            let last = if expected == Some("DELETED") { before.unwrap() } else { object };
            assert!(shown.is_none_or(|labels| labels == last["metadata"]["labels"]));
        }
    }
}
