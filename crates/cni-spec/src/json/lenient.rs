//! Deserializers for values that configs in the wild write in more than one way.

use std::fmt;

use serde::de::{Error, Unexpected, Visitor};
use serde::Deserializer;

/// `#[serde(default, deserialize_with = "podwire_cni_spec::json::lenient::bool")]`: `true`, `false`, or either of them as a
/// string in any case. Version 0.4.0 of the specification asked for `"disableCheck": "true"`.
pub fn bool<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    deserializer.deserialize_any(BoolOrText)
}

struct BoolOrText;

impl Visitor<'_> for BoolOrText {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("true or false, or one of them as a string")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<bool, E> {
        Ok(value)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<bool, E> {
        if text.eq_ignore_ascii_case("true") {
            Ok(true)
        } else if text.eq_ignore_ascii_case("false") {
            Ok(false)
        } else {
            Err(E::invalid_value(Unexpected::Str(text), &self))
        }
    }

    /// Null is not set.
    fn visit_unit<E: Error>(self) -> Result<bool, E> {
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::{json, Value};

    use crate::json;

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(rename_all = "camelCase")]
    struct Conf {
        #[serde(default, deserialize_with = "crate::json::lenient::bool")]
        disable_check: bool,
    }

    fn read(value: Value) -> Result<bool, String> {
        let conf: Conf =
            json::decode(&json!({ "disableCheck": value })).map_err(|error| error.to_string())?;
        Ok(conf.disable_check)
    }

    #[test]
    fn a_bool_may_be_a_string_in_any_case() {
        for yes in [json!(true), json!("true"), json!("True"), json!("TRUE")] {
            assert_eq!(read(yes), Ok(true));
        }
        for no in [json!(false), json!("false"), json!("FALSE"), json!(null)] {
            assert_eq!(read(no), Ok(false));
        }
        assert_eq!(json::decode(&json!({})), Ok(Conf { disable_check: false }));
    }

    #[test]
    fn anything_else_is_named() {
        let text =
            "disableCheck: invalid value: string \"yes\", expected true or false, or one of them as a string";
        assert_eq!(read(json!("yes")), Err(text.to_owned()));
        let text =
            "disableCheck: invalid type: integer `1`, expected true or false, or one of them as a string";
        assert_eq!(read(json!(1)), Err(text.to_owned()));
    }
}
