//! The CNI error object, which is also this crate's Rust error.
//!
//! A plugin that fails prints `{"code": 7, "msg": "…", "details": "…"}` on stdout and exits with 1. Runtimes act
//! on the code (3: no DEL is needed, 11: try again later) and show the text, so both travel together from the
//! place that noticed the failure to the place that prints it.
//!
//! Where the Go plugins have a fixed text, `msg` is exactly that text and `details` are theirs, because programs and tests
//! compare both. What Podwire adds to such an error is its [`hint`](Error::hint).

use serde_json::{json, Value};

use crate::json::keys;

/// The error codes of the CNI specification, and the two that the reference library added.
///
/// 0–99 belong to the specification; a plugin's own codes start at 100.
pub mod code {
    /// The plugin does not support the config's `cniVersion`.
    pub const INCOMPATIBLE_VERSION: u32 = 1;
    /// A config field that the plugin does not support.
    pub const UNSUPPORTED_FIELD: u32 = 2;
    /// The container does not exist; the runtime need not run DEL.
    pub const UNKNOWN_CONTAINER: u32 = 3;
    /// A required environment variable is missing or malformed.
    pub const INVALID_ENV: u32 = 4;
    /// Reading or writing failed, for example stdin.
    pub const IO: u32 = 5;
    /// Bytes that are not the JSON they should be.
    pub const DECODE: u32 = 6;
    /// The network config is valid JSON with invalid content.
    pub const INVALID_CONFIG: u32 = 7;
    /// The network namespace is unusable (reference library only, not in the specification).
    pub const INVALID_NETNS: u32 = 8;
    /// A transient condition: the runtime should try again later.
    pub const TRY_AGAIN: u32 = 11;
    /// STATUS: the plugin cannot serve ADD now.
    pub const NOT_AVAILABLE: u32 = 50;
    /// STATUS: the plugin cannot serve ADD, and containers that run may have limited connectivity.
    pub const LIMITED_CONNECTIVITY: u32 = 51;
    /// Anything without a better code (reference library only, not in the specification).
    pub const INTERNAL: u32 = 999;
}

/// What went wrong, as the CNI protocol carries it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{msg}{}{details}", if .details.is_empty() { "" } else { "; " })]
pub struct Error {
    /// One of [`code`], or a plugin's own from 100 on.
    pub code: u32,
    /// One line for the operator.
    pub msg: String,
    /// More, when there is more to say. Empty means absent.
    pub details: String,
    /// What to do next, beside a text that the Go plugins have word for word. Podwire's command line shows it; other
    /// runtimes ignore its key. Empty means absent.
    pub hint: String,
}

impl Error {
    /// The same error with its position in front.
    pub(crate) fn within(self, position: &str) -> Error {
        Error { msg: format!("{position}: {}", self.msg), ..self }
    }

    /// An error without details.
    pub fn new(code: u32, msg: impl Into<String>) -> Self {
        Error { code, msg: msg.into(), details: String::new(), hint: String::new() }
    }

    /// The same error with details, which replace earlier ones.
    pub fn with_details(mut self, details: impl Into<String>) -> Self {
        self.details = details.into();
        self
    }

    /// The same error with a hint, which replaces an earlier one.
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }

    /// Details and hint, for a person who reads the error.
    pub fn advice(&self) -> String {
        let all = [self.details.as_str(), self.hint.as_str()];
        all.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("; ")
    }

    /// [`code::INVALID_CONFIG`]: the config says something impossible.
    pub fn invalid_config(msg: impl Into<String>) -> Self {
        Error::new(code::INVALID_CONFIG, msg)
    }

    /// [`code::DECODE`]: the bytes cannot be read.
    pub fn decode(msg: impl Into<String>) -> Self {
        Error::new(code::DECODE, msg)
    }

    /// [`code::INVALID_ENV`]: a `CNI_…` variable is missing or malformed.
    pub fn env(msg: impl Into<String>) -> Self {
        Error::new(code::INVALID_ENV, msg)
    }

    /// [`code::INTERNAL`]: no better code exists.
    pub fn internal(msg: impl Into<String>) -> Self {
        Error::new(code::INTERNAL, msg)
    }

    /// The JSON object that a plugin prints: `code`, `msg`, and `details` and `hint` unless empty.
    pub fn to_json(&self) -> Value {
        let mut object = json!({ "code": self.code, "msg": self.msg });
        if !self.details.is_empty() {
            object["details"] = Value::from(self.details.as_str());
        }
        if !self.hint.is_empty() {
            object["hint"] = Value::from(self.hint.as_str());
        }
        object
    }

    /// Reads what a failed plugin printed. `None` if this is no error object: not an object, neither `code` nor
    /// `msg` in it, or one of them of a wrong type.
    pub fn from_json(v: &Value) -> Option<Error> {
        let code = match keys::get(v, "code") {
            Some(code) => Some(u32::try_from(code.as_u64()?).ok()?),
            None => None,
        };
        let text = |key| match keys::get(v, key) {
            Some(text) => text.as_str().map(|text| Some(text.to_owned())),
            None => Some(None),
        };
        let (msg, details, hint) = (text("msg")?, text("details")?, text("hint")?);
        if code.is_none() && msg.is_none() {
            return None;
        }
        // A plugin that forgot the code still failed: 0 is the reference library's "unknown".
        Some(Error {
            code: code.unwrap_or(0),
            msg: msg.unwrap_or_default(),
            details: details.unwrap_or_default(),
            hint: hint.unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_reads_as_msg_and_details() {
        let error = Error::invalid_config("no subnet");
        assert_eq!(error.to_string(), "no subnet");
        assert_eq!(error.with_details("range 0").to_string(), "no subnet; range 0");
    }

    #[test]
    fn json_has_details_only_when_there_are_some() {
        let error = Error::new(code::TRY_AGAIN, "busy");
        assert_eq!(error.to_json().to_string(), r#"{"code":11,"msg":"busy"}"#);
        let error = error.with_details("lock");
        assert_eq!(error.to_json().to_string(), r#"{"code":11,"msg":"busy","details":"lock"}"#);
        assert_eq!(Error::from_json(&error.to_json()), Some(error));
    }

    #[test]
    fn a_hint_is_beside_the_text_and_no_part_of_it() {
        let error = Error::invalid_config("no IP ranges specified").with_hint("set ipam.subnet");
        assert_eq!(error.to_string(), "no IP ranges specified");
        assert_eq!(error.advice(), "set ipam.subnet");
        let json = error.to_json();
        assert_eq!(json.to_string(), r#"{"code":7,"msg":"no IP ranges specified","hint":"set ipam.subnet"}"#);
        assert_eq!(Error::from_json(&json), Some(error.clone()));
        assert_eq!(error.with_details("a").advice(), "a; set ipam.subnet");
    }

    #[test]
    fn a_plugin_that_shouts_or_forgets_the_code_is_still_understood() {
        let shout = json!({"Code": 3, "Msg": "gone", "cniVersion": "1.0.0", "details": null});
        assert_eq!(Error::from_json(&shout), Some(Error::new(3, "gone")));
        assert_eq!(Error::from_json(&json!({"msg": "x"})), Some(Error::new(0, "x")));
    }

    #[test]
    fn other_json_is_no_error() {
        for v in [json!(null), json!({}), json!([]), json!("x"), json!({"ips": []})] {
            assert_eq!(Error::from_json(&v), None, "{v}");
        }
        for v in [json!({"code": "7"}), json!({"code": -1, "msg": "x"}), json!({"code": 1, "msg": 5})] {
            assert_eq!(Error::from_json(&v), None, "{v}");
        }
    }
}
