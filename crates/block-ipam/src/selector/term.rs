//! The syntax tree of a selector.

use std::collections::BTreeSet;
use std::fmt;

use super::labels::Labels;

/// A term of a selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Term {
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
pub(super) enum Comparison {
    Equal,
    Unequal,
    Contains,
    StartsWith,
    EndsWith,
}

impl Term {
    pub(super) fn matches(&self, labels: &Labels) -> bool {
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

    fn operator(self) -> &'static str {
        match self {
            Comparison::Equal => "==",
            Comparison::Unequal => "!=",
            Comparison::Contains => "contains",
            Comparison::StartsWith => "starts with",
            Comparison::EndsWith => "ends with",
        }
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let joined = |terms: &[Term], operator: &str| {
            terms.iter().map(ToString::to_string).collect::<Vec<_>>().join(&format!(" {operator} "))
        };
        let set =
            |texts: &BTreeSet<String>| texts.iter().map(|text| quoted(text)).collect::<Vec<_>>().join(", ");
        match self {
            Term::All => write!(f, "all()"),
            Term::Global => write!(f, "global()"),
            Term::Has(label) => write!(f, "has({label})"),
            Term::Is(label, comparison, text) => {
                write!(f, "{label} {} {}", comparison.operator(), quoted(text))
            }
            Term::In(label, texts) => write!(f, "{label} in {{{}}}", set(texts)),
            Term::NotIn(label, texts) => write!(f, "{label} not in {{{}}}", set(texts)),
            Term::Not(term) => write!(f, "!{term}"),
            Term::Every(terms) => write!(f, "({})", joined(terms, "&&")),
            Term::Any(terms) => write!(f, "({})", joined(terms, "||")),
        }
    }
}

/// Quotes a text. There are no escapes: a text with double quotes gets single ones.
fn quoted(text: &str) -> String {
    if text.contains('"') {
        format!("'{text}'")
    } else {
        format!("\"{text}\"")
    }
}
