//! JSON as Go reads it.
//!
//! Runtimes rely on the behaviour of Go's `encoding/json`: containerd sends `{"HostPort": 8080}` where the specification says
//! `hostPort`, `null` means "not set", and unknown keys are skipped. A plain serde struct would see no ports at all. [`decode`]
//! decodes any `Deserialize` type with this behaviour; its errors name the path of the value.

mod decode;
mod decode_error;
pub(crate) mod keys;
pub mod lenient;
mod node;

use serde::Serialize;
use serde_json::error::Category;
use serde_json::Value;

pub use decode::decode;
pub(crate) use decode::decode_under;
pub use keys::{get, set};

use crate::Error;

/// How many characters of a broken document an error shows.
const EXCERPT: usize = 40;

/// Reads exactly one JSON document (code 6). Nothing but white space may follow it, and it may nest at most
/// 128 deep.
pub fn parse(bytes: &[u8]) -> Result<Value, Error> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(Error::decode("invalid JSON: the input is empty"));
    }
    serde_json::from_slice(bytes).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        // serde_json ends its text with the position, which is in front here.
        let text = error.to_string();
        let why = text.strip_suffix(&format!(" at line {line} column {column}")).unwrap_or(&text);
        let near = match error.classify() {
            Category::Eof => "ends with",
            _ => "near",
        };
        let excerpt = excerpt(bytes, line, column);
        Error::decode(format!("invalid JSON at line {line} column {column}: {why}, {near} `{excerpt}`"))
    })
}

/// The text around a position (both counted from 1, the column in bytes), fit for one line of a log.
fn excerpt(bytes: &[u8], line: usize, column: usize) -> String {
    let line = bytes.split(|b| *b == b'\n').nth(line.saturating_sub(1)).unwrap_or_default();
    let end = column.saturating_add(EXCERPT / 4).min(line.len());
    let start = end.saturating_sub(EXCERPT);
    let text = String::from_utf8_lossy(&line[start..end]);
    text.trim().chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// The text that plugins print: indented by four spaces, without a line feed at the end.
pub fn pretty(v: &Value) -> String {
    let mut bytes = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, formatter);
    // A `Value` has string keys only and a `Vec` takes every write, so neither can fail.
    match v.serialize(&mut serializer) {
        Ok(()) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(_) => v.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::code;

    #[test]
    fn a_broken_document_is_located_and_quoted() {
        let error = parse(b"{\n  \"name\": \"a\",\n  \"type\" \"b\"\n}").unwrap_err();
        assert_eq!(error.code, code::DECODE);
        let text = "invalid JSON at line 3 column 10: expected `:`, near `\"type\" \"b\"`";
        assert_eq!(error.msg, text);
    }

    #[test]
    fn truncated_empty_and_trailing_input_is_refused() {
        assert_eq!(parse(b" \n").unwrap_err().msg, "invalid JSON: the input is empty");
        let error = parse(b"{\"a\": [1, 2").unwrap_err().msg;
        assert!(error.ends_with("EOF while parsing a list, ends with `{\"a\": [1, 2`"), "{error}");
        let error = parse(b"{} {}").unwrap_err().msg;
        assert!(error.contains("trailing characters, near `{} {}`"), "{error}");
    }

    #[test]
    fn hostile_documents_end_in_an_error() {
        assert!(parse(&b"[".repeat(1_000_000)).is_err());
        assert!(parse(b"{\"a\":\"\xff\xfe\"}").is_err());
        assert!(parse(b"{\"a\":\"\x1b[2J\"}").unwrap_err().msg.chars().all(|c| !c.is_control()));
        assert!(parse(b"{\"a\":1e999}").is_err());
    }

    #[test]
    fn get_prefers_the_exact_key_then_the_last_variant() {
        let v = json!({"A": 1, "a": 2, "B": 3, "b": null, "CC": 4, "Cc": 5, "cC": null});
        assert_eq!(get(&v, "a"), Some(&json!(2)));
        assert_eq!(get(&v, "b"), Some(&json!(3)), "null is absent");
        assert_eq!(get(&v, "cc"), Some(&json!(5)));
        assert_eq!(get(&v, "d"), None);
        assert_eq!(get(&json!([1]), "a"), None);
    }

    #[test]
    fn set_leaves_one_spelling_in_its_place() {
        let mut v = json!({"CNIVersion": "0.3.0", "cniVersion": "0.4.0", "name": "x"});
        set(v.as_object_mut().unwrap(), "cniVersion", json!("1.0.0"));
        assert_eq!(v.to_string(), r#"{"cniVersion":"1.0.0","name":"x"}"#);
    }

    #[test]
    fn pretty_is_gos_indentation() {
        assert_eq!(
            pretty(&json!({"a": [1], "b": {}})),
            "{\n    \"a\": [\n        1\n    ],\n    \"b\": {}\n}"
        );
    }

    proptest! {
        #[test]
        fn parse_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn parse_of_almost_json_never_panics(text in "[\\[\\]{}:,\"\\\\a-f0-9é\n \t.eE+-]{0,80}") {
            let _ = parse(text.as_bytes());
        }
    }
}
