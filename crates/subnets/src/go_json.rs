//! JSON as Go writes it.
//!
//! Go's encoder escapes what could end an HTML script (`<`, `>`, `&`) and two separators that JavaScript takes for line
//! ends. Values that both flannel and this program write are compared as bytes, by people and by `etcdctl`, so ours
//! are the same bytes.

use serde::Serialize;

/// A value in Go's compact form.
pub(crate) fn compact(value: &impl Serialize) -> String {
    // What is encoded here has string keys and no numbers that JSON lacks: it cannot fail.
    let text = serde_json::to_string(value).unwrap_or_default();
    // Outside of strings none of these is JSON, so they need not be told apart.
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
    fn go_fears_html() {
        let value = json!({"b": "a<b>&c\u{2028}", "a": "+/="});
        assert_eq!(super::compact(&value), r#"{"b":"a\u003cb\u003e\u0026c\u2028","a":"+/="}"#);
    }
}
