//! Calico's selectors: which labels an object must have.
//!
//! A pool names nodes and namespaces by a sentence over their labels, such as `zone == "west" && !has(gpu)`. The language:
//! `all()`, `global()`, `has(label)`, `label == "text"`, `!=`, `in {"a", "b"}`, `not in {…}`, `contains "text"`,
//! `starts with "text"`, `ends with "text"`, with `!`, `&&`, `||` (which binds weakest) and parentheses. An empty text is `all()`.
//! What a label lacks is unlike everything: `!=` and `not in` hold for an object without the label, the others do not.

mod parse;
mod token;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Labels of a node, a namespace or a pod.
pub type Labels = BTreeMap<String, String>;

/// A sentence over labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector(Term);

/// A part of such a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Term {
    All,
    Global,
    Has(String),
    Is(String, Comparison, String),
    In(String, BTreeSet<String>),
    NotIn(String, BTreeSet<String>),
    Not(Box<Term>),
    Every(Vec<Term>),
    Any(Vec<Term>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Equal,
    Unequal,
    Contains,
    StartsWith,
    EndsWith,
}

/// A selector that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the selector {text:?} makes no sense at character {at}: {why}")]
pub struct SelectorError {
    /// The selector.
    pub text: String,
    /// Where, counted from 1.
    pub at: usize,
    /// What is wrong there.
    pub why: &'static str,
}

impl Selector {
    /// Reads a selector.
    pub fn parse(text: &str) -> Result<Selector, SelectorError> {
        parse::selector(text).map(Selector).map_err(|(at, why)| SelectorError {
            text: text.into(),
            at: text[..at].chars().count() + 1,
            why,
        })
    }

    /// Whether an object with these labels is meant.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.matches(labels)
    }
}

impl Term {
    fn matches(&self, labels: &Labels) -> bool {
        match self {
            Term::All | Term::Global => true,
            Term::Has(label) => labels.contains_key(label),
            Term::Is(label, comparison, text) => comparison.holds(labels.get(label), text),
            Term::In(label, texts) => labels.get(label).is_some_and(|value| texts.contains(value)),
            Term::NotIn(label, texts) => labels.get(label).is_none_or(|value| !texts.contains(value)),
            Term::Not(term) => !term.matches(labels),
            Term::Every(terms) => terms.iter().all(|term| term.matches(labels)),
            Term::Any(terms) => terms.iter().any(|term| term.matches(labels)),
        }
    }
}

impl Comparison {
    fn holds(self, value: Option<&String>, text: &str) -> bool {
        match (self, value) {
            (Comparison::Unequal, value) => value.is_none_or(|value| value != text),
            (_, None) => false,
            (Comparison::Equal, Some(value)) => value == text,
            (Comparison::Contains, Some(value)) => value.contains(text),
            (Comparison::StartsWith, Some(value)) => value.starts_with(text),
            (Comparison::EndsWith, Some(value)) => value.ends_with(text),
        }
    }

    fn word(self) -> &'static str {
        match self {
            Comparison::Equal => "==",
            Comparison::Unequal => "!=",
            Comparison::Contains => "contains",
            Comparison::StartsWith => "starts with",
            Comparison::EndsWith => "ends with",
        }
    }
}

/// In the form that Calico gives it too: every `&&` and `||` in parentheses, the texts of a set in their order.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let joined = |terms: &[Term], word: &str| {
            terms.iter().map(ToString::to_string).collect::<Vec<_>>().join(&format!(" {word} "))
        };
        let set =
            |texts: &BTreeSet<String>| texts.iter().map(|text| quoted(text)).collect::<Vec<_>>().join(", ");
        match self {
            Term::All => write!(f, "all()"),
            Term::Global => write!(f, "global()"),
            Term::Has(label) => write!(f, "has({label})"),
            Term::Is(label, comparison, text) => write!(f, "{label} {} {}", comparison.word(), quoted(text)),
            Term::In(label, texts) => write!(f, "{label} in {{{}}}", set(texts)),
            Term::NotIn(label, texts) => write!(f, "{label} not in {{{}}}", set(texts)),
            Term::Not(term) => write!(f, "!{term}"),
            Term::Every(terms) => write!(f, "({})", joined(terms, "&&")),
            Term::Any(terms) => write!(f, "({})", joined(terms, "||")),
        }
    }
}

/// There are no escapes: a text with one kind of quotes stands in the other.
fn quoted(text: &str) -> String {
    match text.contains('"') {
        true => format!("'{text}'"),
        false => format!("\"{text}\""),
    }
}

#[cfg(test)]
mod tests;
