//! Mistakes in objects. They are reported; what is right takes effect.

use std::fmt;

/// A mistake in one object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Kind and name: `Service shop/web`.
    pub object: String,
    /// What is wrong, and what the node does about it.
    pub text: String,
}

impl Problem {
    pub(crate) fn new(object: impl Into<String>, text: impl Into<String>) -> Problem {
        Problem { object: object.into(), text: text.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.object, self.text)
    }
}
