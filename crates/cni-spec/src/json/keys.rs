//! Keys of objects, matched as Go matches them: without case.

use serde_json::{Map, Value};

/// The value of a key in an object as Go would find it: the exact spelling first, else the last spelling that
/// differs only in ASCII case. Null is absent, and a value that is not an object has no keys.
pub fn get<'v>(v: &'v Value, key: &str) -> Option<&'v Value> {
    find(v.as_object()?, key).map(|(_, value)| value)
}

/// [`get`] for a map, together with the spelling that was found.
pub(crate) fn find<'v>(object: &'v Map<String, Value>, key: &str) -> Option<(&'v str, &'v Value)> {
    let exact = object.get_key_value(key).filter(|(_, value)| !value.is_null());
    let folded = || object.iter().rfind(|(k, value)| !value.is_null() && k.eq_ignore_ascii_case(key));
    exact.or_else(folded).map(|(k, value)| (k.as_str(), value))
}

/// Sets a key in place and removes its other spellings, which a Go program might read instead.
pub fn set(object: &mut Map<String, Value>, key: &str, value: Value) {
    object.retain(|k, _| k == key || !k.eq_ignore_ascii_case(key));
    object.insert(key.to_owned(), value);
}
