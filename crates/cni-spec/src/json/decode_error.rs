//! The error of decoding: a value that does not fit, and the way to it.

use std::fmt;

use serde::de::{self, Expected, Unexpected};
use serde_json::Value;

/// Why, and the steps to the value: innermost first, collected while the error rises.
#[derive(Debug)]
pub(super) struct DecodeError {
    path: Vec<Step>,
    why: String,
}

#[derive(Debug)]
enum Step {
    Key(String),
    Index(usize),
}

impl DecodeError {
    pub(super) fn under_key(mut self, key: &str) -> Self {
        self.path.push(Step::Key(key.to_owned()));
        self
    }

    pub(super) fn under_index(mut self, index: usize) -> Self {
        self.path.push(Step::Index(index));
        self
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, step) in self.path.iter().rev().enumerate() {
            match step {
                Step::Key(key) if i == 0 => write!(f, "{}", key.escape_debug())?,
                Step::Key(key) => write!(f, ".{}", key.escape_debug())?,
                Step::Index(index) => write!(f, "[{index}]")?,
            }
        }
        let separator = if self.path.is_empty() { "" } else { ": " };
        write!(f, "{separator}{}", self.why)
    }
}

impl std::error::Error for DecodeError {}

impl de::Error for DecodeError {
    fn custom<T: fmt::Display>(why: T) -> Self {
        DecodeError { path: Vec::new(), why: why.to_string() }
    }
}

/// The decode_error of a value whose kind of JSON is wrong.
pub(super) fn wrong_type(found: &Value, expected: &dyn Expected) -> DecodeError {
    let found = match found {
        Value::Null => Unexpected::Unit,
        Value::Bool(b) => Unexpected::Bool(*b),
        Value::Number(n) => match (n.as_u64(), n.as_i64(), n.as_f64()) {
            (Some(n), _, _) => Unexpected::Unsigned(n),
            (_, Some(n), _) => Unexpected::Signed(n),
            (_, _, n) => Unexpected::Float(n.unwrap_or(f64::NAN)),
        },
        Value::String(text) => Unexpected::Str(text),
        Value::Array(_) => Unexpected::Other("an array"),
        Value::Object(_) => Unexpected::Other("an object"),
    };
    de::Error::invalid_type(found, expected)
}
