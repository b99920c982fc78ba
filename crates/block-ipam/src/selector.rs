//! Calico's selectors: conditions on the labels of an object.
//!
//! A pool selects nodes and namespaces with an expression over their labels, such as `zone == "west" && !has(gpu)`. The
//! language has `all()`, `global()`, `has(label)`, `label == "text"`, `!=`, `in {"a", "b"}`, `not in {…}`, `contains
//! "text"`, `starts with "text"`, `ends with "text"`, `!`, `&&`, `||` (which binds weakest) and parentheses. An empty
//! text is `all()`. For an object without the label, `!=` and `not in` are true, and the others are false.

mod labels;
mod parse;
mod term;
mod token;

use std::fmt;

pub use labels::Labels;
use term::Term;

/// A parsed selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector(Term);

/// A syntax error in a selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the selector {text:?} is invalid at character {at}: {why}")]
pub struct SelectorError {
    /// The selector.
    pub text: String,
    /// The position, counted from 1.
    pub at: usize,
    /// What is wrong there.
    pub why: &'static str,
}

impl Selector {
    /// Parses a selector.
    pub fn parse(text: &str) -> Result<Selector, SelectorError> {
        parse::selector(text).map(Selector).map_err(|error| SelectorError {
            text: text.into(),
            at: text[..error.at].chars().count() + 1,
            why: error.why,
        })
    }

    /// Whether the selector selects an object with these labels.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.matches(labels)
    }
}

/// In Calico's canonical form: every `&&` and `||` in parentheses, the texts of a set sorted.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests;
