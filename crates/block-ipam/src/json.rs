//! JSON as Go writes it, so that podwire and Calico write the same bytes into a shared datastore.

use serde::Serialize;
use serde_json::{Map, Value};

/// Unknown fields, written by a newer Calico. They are kept unchanged.
pub type Unknown = Map<String, Value>;

/// Encodes a value like Go: `<`, `>`, `&` and two line separators are escaped for HTML. They occur only inside of
/// strings.
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

/// For lists and maps: Go writes `null` for a nil slice or map.
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
    fn strings_are_escaped_as_in_go() {
        let bytes = super::encode(&"a<b>&\u{2028}ä\"\u{1}").unwrap();
        assert_eq!(String::from_utf8(bytes).unwrap(), r#""a\u003cb\u003e\u0026\u2028ä\"\u0001""#);
    }
}
