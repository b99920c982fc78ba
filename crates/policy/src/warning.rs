//! Warnings about policies that are enforced nevertheless.

use std::fmt;

use crate::api::UnknownFields;

/// The kind of a warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WarningKind {
    /// The API server would refuse this field; it is enforced in the strictest sense.
    Invalid,
    /// A field that this program does not know. The API server drops such fields, and so does this program.
    UnknownField,
    /// Something that is not enforced, such as domain names; what depends on it is not allowed.
    Unsupported,
    /// Valid, but probably not as intended: a network with host bits, rules for a direction that the policy does not
    /// isolate.
    Suspicious,
    /// A selector that selects nothing now.
    Unmatched,
}

/// A warning about one field of one object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Warning {
    /// Kind and name: `NetworkPolicy shop/web`.
    pub object: String,
    /// The path of the field: `spec.ingress[0].from[1]`.
    pub field: String,
    /// The kind.
    pub kind: WarningKind,
    /// The message.
    pub text: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.object, self.field, self.text)
    }
}

/// Collects the warnings about one object.
pub(crate) struct WarningSink<'a> {
    object: String,
    warnings: &'a mut Vec<Warning>,
}

impl<'a> WarningSink<'a> {
    pub(crate) fn new(object: impl Into<String>, warnings: &'a mut Vec<Warning>) -> WarningSink<'a> {
        WarningSink { object: object.into(), warnings }
    }

    pub(crate) fn add(&mut self, field: impl Into<String>, kind: WarningKind, text: impl Into<String>) {
        let (object, field, text) = (self.object.clone(), field.into(), text.into());
        self.warnings.push(Warning { object, field, kind, text });
    }

    /// Adds a warning for each unknown field. `parent`: the path of the object that has them.
    pub(crate) fn add_unknown(&mut self, parent: &str, fields: &UnknownFields) {
        for name in fields.keys() {
            let field = if parent.is_empty() { name.clone() } else { format!("{parent}.{name}") };
            self.add(field, WarningKind::UnknownField, "no such field");
        }
    }
}
