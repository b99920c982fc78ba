//! What holds for all commands of `podwire`: which there are, and the form of their JSON.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use crate::podwire;

/// The commands that `podwire WORDS --help` lists; none if WORDS is a command without subcommands.
pub fn subcommands(words: &[&str]) -> BTreeSet<String> {
    let output = Command::new(podwire()).args(words).arg("--help").output().expect("podwire");
    let help = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(help.contains("Usage: podwire"), "{words:?}: {help}");
    let listed =
        help.lines().take_while(|line| *line != "Options:").filter_map(|line| line.strip_prefix("  "));
    let names = listed.filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()));
    names.filter_map(|line| line.split_whitespace().next()).map(String::from).collect()
}

/// All commands without subcommands, such as `cni add`.
pub fn commands() -> BTreeSet<String> {
    let of = |group: String| {
        let inner = subcommands(&[&group]);
        let all: Vec<String> = inner.iter().map(|name| format!("{group} {name}")).collect();
        if all.is_empty() {
            vec![group]
        } else {
            all
        }
    };
    subcommands(&[]).into_iter().flat_map(of).collect()
}

/// What is wrong with the form of a command's JSON: it is one object, and its keys are in camel case.
pub fn json_problems(command: &str, value: &Value) -> Vec<String> {
    let form = (!value.is_object()).then(|| format!("{command}: {value}"));
    let keys = odd_keys(value).into_iter().map(|key| format!("{command}: key {key}"));
    form.into_iter().chain(keys).collect()
}

/// The keys that are not in camel case, in all of a document.
fn odd_keys(value: &Value) -> Vec<String> {
    match value {
        Value::Object(object) => {
            let odd = object
                .keys()
                .filter(|key| !key.chars().all(char::is_alphanumeric) || key.starts_with(char::is_uppercase));
            odd.cloned().chain(object.values().flat_map(odd_keys)).collect()
        }
        Value::Array(all) => all.iter().flat_map(odd_keys).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_of_another_form_are_found() {
        assert_eq!(json_problems("x", &json!({"podCidrs": [{"name": "A_b"}]})), [""; 0]);
        let odd = json!({"pods": [{"pod_cidr": {"Name": 1}}], "host-port": 2});
        assert_eq!(json_problems("x", &odd), ["x: key host-port", "x: key pod_cidr", "x: key Name"]);
        assert_eq!(json_problems("x", &json!([1])), ["x: [1]"]);
    }
}
