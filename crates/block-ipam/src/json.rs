//! JSON as Go writes it: whoever shares a datastore with Calico writes the same bytes for the same thing.

use serde::Serialize;
use serde_json::{Map, Value};

/// Fields that we do not know: written by a newer Calico, and kept as they are.
pub type Unknown = Map<String, Value>;

/// The value in Go's spelling: `<`, `>`, `&` and two line separators are escaped, so that JSON can stand in HTML. They occur
/// within texts only.
pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, serde_json::Error> {
    let text = serde_json::to_string(value)?;
    if !text.contains(['<', '>', '&', '\u{2028}', '\u{2029}']) {
        return Ok(text.into_bytes());
    }
    let escape = |text: String, c: char| match c {
        '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => format!("{text}\\u{:04x}", u32::from(c)),
        c => text + c.encode_utf8(&mut [0; 4]),
    };
    Ok(text.chars().fold(String::new(), escape).into_bytes())
}

/// For lists and maps: Go writes `null` for one that was never made.
pub(super) fn null_is_empty<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: serde::Deserialize<'de> + Default,
{
    Ok(<Option<T> as serde::Deserialize>::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    #[test]
    fn texts_are_escaped_as_go_does() {
        let bytes = super::encode(&"a<b>&\u{2028}ä\"\u{1}").unwrap();
        assert_eq!(String::from_utf8(bytes).unwrap(), r#""a\u003cb\u003e\u0026\u2028ä\"\u0001""#);
    }
}
