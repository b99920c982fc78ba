//! JSON as Go writes it.
//!
//! Go's encoder escapes `<`, `>`, `&` and two line separators of JavaScript, so that JSON can be embedded in HTML.
//! People and `etcdctl` compare the values of flannel and podwire as bytes, so podwire writes the same bytes.

use serde::Serialize;

/// Encodes a value in Go's compact form.
pub(crate) fn compact(value: &impl Serialize) -> String {
    // All values here have string keys and finite numbers, so encoding cannot fail.
    let text = serde_json::to_string(value).unwrap_or_default();
    // These characters occur only inside of strings.
    let escaped = |c: char| match c {
        '<' => "\\u003c".to_string(),
        '>' => "\\u003e".to_string(),
        '&' => "\\u0026".to_string(),
        '\u{2028}' => "\\u2028".to_string(),
        '\u{2029}' => "\\u2029".to_string(),
        c => c.to_string(),
    };
    text.chars().map(escaped).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn html_characters_are_escaped_as_in_go() {
        let value = json!({"b": "a<b>&c\u{2028}", "a": "+/="});
        assert_eq!(super::compact(&value), r#"{"b":"a\u003cb\u003e\u0026c\u2028","a":"+/="}"#);
    }
}
