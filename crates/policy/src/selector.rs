//! Parsed label selectors.

use std::collections::BTreeSet;
use std::fmt;

use crate::api::{LabelSelector, Labels};

/// A set of conditions. The set is sorted, so two selectors with the same conditions are equal.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Selector {
    conditions: BTreeSet<Condition>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Condition {
    In(String, BTreeSet<String>),
    NotIn(String, BTreeSet<String>),
    Exists(String),
    Absent(String),
}

impl Selector {
    /// The selector that selects everything.
    pub fn everything() -> Selector {
        Selector::default()
    }

    /// Parses a selector. The error says what is invalid.
    pub fn parse(selector: &LabelSelector) -> Result<Selector, String> {
        let mut conditions = BTreeSet::new();
        for (key, value) in &selector.match_labels {
            conditions.insert(Condition::In(key.clone(), BTreeSet::from([value.clone()])));
        }
        for requirement in &selector.match_expressions {
            let (key, operator) = (requirement.key.clone(), requirement.operator.as_str());
            let values: BTreeSet<String> = requirement.values.iter().cloned().collect();
            if key.is_empty() {
                return Err("a condition has no key".into());
            }
            conditions.insert(match (operator, values.is_empty()) {
                ("In", false) => Condition::In(key, values),
                ("NotIn", false) => Condition::NotIn(key, values),
                ("Exists", true) => Condition::Exists(key),
                ("DoesNotExist", true) => Condition::Absent(key),
                ("In" | "NotIn", true) => return Err(format!("{key} {operator} needs values")),
                ("Exists" | "DoesNotExist", false) => {
                    return Err(format!("{key} {operator} takes no values"))
                }
                _ => {
                    return Err(format!(
                        "no such operator: {operator:?} (use In, NotIn, Exists or DoesNotExist)"
                    ))
                }
            });
        }
        Ok(Selector { conditions })
    }

    /// Whether all conditions hold.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.conditions.iter().all(|condition| match condition {
            Condition::In(key, values) => labels.get(key).is_some_and(|value| values.contains(value)),
            Condition::NotIn(key, values) => labels.get(key).is_none_or(|value| !values.contains(value)),
            Condition::Exists(key) => labels.contains_key(key),
            Condition::Absent(key) => !labels.contains_key(key),
        })
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.conditions.is_empty() {
            return f.write_str("(all)");
        }
        let list =
            |values: &BTreeSet<String>| values.iter().map(String::as_str).collect::<Vec<_>>().join(",");
        let conditions = self.conditions.iter().map(|condition| match condition {
            Condition::In(key, values) if values.len() == 1 => format!("{key}={}", list(values)),
            Condition::In(key, values) => format!("{key} in ({})", list(values)),
            Condition::NotIn(key, values) => format!("{key} notin ({})", list(values)),
            Condition::Exists(key) => key.clone(),
            Condition::Absent(key) => format!("!{key}"),
        });
        f.write_str(&conditions.collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn selector(value: serde_json::Value) -> Result<Selector, String> {
        Selector::parse(&serde_json::from_value(value).unwrap())
    }

    fn labels(text: &str) -> Labels {
        let pair = |pair: &str| pair.split_once('=').map(|(key, value)| (key.into(), value.into())).unwrap();
        text.split_whitespace().map(pair).collect()
    }

    #[test]
    fn the_four_operators_match_as_documented() {
        let with = |operator: &str, values: &[&str]| {
            selector(json!({ "matchExpressions": [{ "key": "a", "operator": operator, "values": values }] }))
                .unwrap()
        };
        for (selector, fits) in [
            (with("In", &["1", "2"]), [true, false, false]),
            (with("NotIn", &["1", "2"]), [false, true, true]),
            (with("Exists", &[]), [true, true, false]),
            (with("DoesNotExist", &[]), [false, false, true]),
        ] {
            assert_eq!(["a=1", "a=3", "b=1"].map(|text| selector.matches(&labels(text))), fits, "{selector}");
        }
    }

    #[test]
    fn an_empty_selector_selects_everything() {
        assert!(selector(json!({})).unwrap().matches(&labels("")));
        assert_eq!(Selector::everything().to_string(), "(all)");
    }

    #[test]
    fn all_conditions_must_hold_in_any_order() {
        let one = selector(json!({ "matchLabels": { "a": "1" },
            "matchExpressions": [{ "key": "b", "operator": "Exists" }] }))
        .unwrap();
        let other = selector(json!({ "matchExpressions": [{ "key": "b", "operator": "Exists" },
            { "key": "a", "operator": "In", "values": ["1"] }] }))
        .unwrap();
        assert_eq!(one, other);
        assert!(one.matches(&labels("a=1 b=x")) && !one.matches(&labels("a=1")));
    }

    #[test]
    fn invalid_selectors_are_refused() {
        let wrong = |operator: &str, values: &[&str]| {
            selector(json!({ "matchExpressions": [{ "key": "a", "operator": operator, "values": values }] }))
                .unwrap_err()
        };
        assert_eq!(wrong("In", &[]), "a In needs values");
        assert_eq!(wrong("Exists", &["1"]), "a Exists takes no values");
        assert!(wrong("Is", &["1"]).starts_with("no such operator"));
    }
}
