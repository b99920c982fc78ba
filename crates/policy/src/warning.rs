//! What a user should hear about a policy that nevertheless is enforced.

use std::fmt;

/// What kind of thing is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The API server would refuse this part; it is enforced in the strictest sense.
    Refused,
    /// A field that this program does not know. The API server drops such fields, and so does this program.
    Unknown,
    /// Something that nothing enforces yet, such as domain names; what depends on it is not allowed.
    Unsupported,
    /// It is read, but hardly as it was meant: a network with host bits, rules for a direction that is not the policy's.
    Suspicious,
    /// A selector to which nothing fits at this moment.
    Nothing,
}

/// Something about one place of one object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Warning {
    /// Kind and name: `NetworkPolicy shop/web`.
    pub object: String,
    /// Where in it: `spec.ingress[0].from[1]`.
    pub place: String,
    /// What kind of thing is told.
    pub kind: Kind,
    /// What is told.
    pub text: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.object, self.place, self.text)
    }
}

/// Gathers warnings about one object.
pub(crate) struct Warner<'a> {
    object: String,
    warnings: &'a mut Vec<Warning>,
}

impl<'a> Warner<'a> {
    pub(crate) fn about(object: impl Into<String>, warnings: &'a mut Vec<Warning>) -> Warner<'a> {
        Warner { object: object.into(), warnings }
    }

    pub(crate) fn say(&mut self, place: impl Into<String>, kind: Kind, text: impl Into<String>) {
        let (object, place, text) = (self.object.clone(), place.into(), text.into());
        self.warnings.push(Warning { object, place, kind, text });
    }

    /// Tells about fields that nobody knows.
    pub(crate) fn unknown(&mut self, place: &str, fields: &crate::api::Unknown) {
        for field in fields.keys() {
            let place = if place.is_empty() { field.clone() } else { format!("{place}.{field}") };
            self.say(place, Kind::Unknown, "no such field");
        }
    }
}
