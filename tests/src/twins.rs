//! Sends the same requests to Debian's Go plugins and to Podwire's, each on a separate node, and compares the outcomes.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

use serde_json::{json, Value};

use crate::facts::{leaves, Facts, Roles};
use crate::{ours, Invocation, Node, Output, Pod, GO};

/// How many cases run at the same time.
const AT_A_TIME: usize = 4;

/// A network and the calls for both.
#[derive(Clone, Debug)]
pub struct Case {
    name: &'static str,
    version: &'static str,
    plugins: Vec<Value>,
    pods: usize,
    prepare: String,
    env: Vec<(&'static str, &'static str)>,
    says: Option<&'static str>,
    differs: BTreeSet<&'static str>,
}

/// An intended difference from the Go plugins.
#[derive(Clone, Copy, Debug)]
pub struct Difference {
    /// Its name here and in `docs/differences.md`.
    pub name: &'static str,
    /// The lines that show it: `-` occurs only with the Go plugins, `+` only with Podwire's; `*` matches anything.
    pub lines: &'static [&'static str],
}

impl Case {
    /// A network of these plugins, version 1.0.0, with two pods.
    pub fn new(name: &'static str, plugins: &[Value]) -> Case {
        Case {
            name,
            version: "1.0.0",
            plugins: plugins.to_vec(),
            pods: 2,
            prepare: String::new(),
            env: Vec::new(),
            says: None,
            differs: BTreeSet::new(),
        }
    }

    /// With another version of the spec.
    pub fn version(mut self, version: &'static str) -> Case {
        self.version = version;
        self
    }

    /// With this number of pods.
    pub fn pods(mut self, pods: usize) -> Case {
        self.pods = pods;
        self
    }

    /// Runs this script on the node first. Pods `p1`, `p2`… exist already.
    pub fn after(mut self, script: &str) -> Case {
        self.prepare = script.into();
        self
    }

    /// With this variable.
    pub fn env(mut self, name: &'static str, value: &'static str) -> Case {
        self.env.push((name, value));
        self
    }

    /// The last pod's ADD fails, and both errors contain this text.
    pub fn fails(mut self, says: &'static str) -> Case {
        self.says = Some(says);
        self
    }

    /// Expects exactly these differences.
    pub fn differs(mut self, differences: &[&'static str]) -> Case {
        self.differs.extend(differences);
        self
    }

    /// Removes expected differences.
    pub fn agrees(mut self, differences: &[&'static str]) -> Case {
        self.differs.retain(|one| !differences.contains(one));
        self
    }

    /// The expected differences.
    pub fn differences(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.differs.iter().copied()
    }

    /// Runs the case on both nodes; returns the unexpected differences as text.
    fn complaints(&self, known: &[Difference]) -> String {
        let (go, ours) = std::thread::scope(|scope| {
            let go = scope.spawn(|| Side::run(self, GO));
            (go.join(), Side::run(self, &ours()))
        });
        let (go, wrong_go) = go.unwrap_or_else(|_| panic!("{}: the Go side", self.name));
        let (ours, wrong_ours) = ours;
        let mut shown = BTreeSet::new();
        let mut complaints = [wrong_go, wrong_ours].concat();
        let removed = go.difference(&ours).map(|line| format!("- {line}"));
        let lines: Vec<_> = removed.chain(ours.difference(&go).map(|line| format!("+ {line}"))).collect();
        for line in lines.iter().filter(|line| !follows(line, &lines)) {
            match known.iter().find(|one| one.lines.iter().any(|pattern| matches(pattern, line))) {
                Some(difference) => drop(shown.insert(difference.name)),
                None => complaints += &format!("{line}\n"),
            }
        }
        for name in shown.symmetric_difference(&self.differs) {
            let verb = if shown.contains(name) { "shows" } else { "does not show" };
            complaints += &format!("the difference {name:?} {verb}\n");
        }
        complaints
    }
}

/// Runs all cases, several at a time because they mostly wait for the kernel, and panics with all unexpected
/// differences.
pub fn compare(cases: &[Case], known: &[Difference]) {
    let next = AtomicUsize::new(0);
    let complaints = Mutex::new(String::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let found = case.complaints(known);
                    if !found.is_empty() {
                        *complaints.lock().expect("lock") += &format!("\n{}:\n{found}", case.name);
                    }
                }
            });
        }
    });
    let complaints = complaints.into_inner().expect("lock");
    assert!(complaints.is_empty(), "Go (-) and ours (+) differ\n{complaints}");
}

/// Whether a line describes a link or file that exists on one side only: another line says that it exists.
fn follows(line: &str, all: &[String]) -> bool {
    if let Some((place, rest)) = line.split_once(" mode ") {
        let other =
            format!("{}{} mode {} ", if line.starts_with('-') { "+" } else { "-" }, &place[1..], path(rest));
        return !all.iter().any(|one| one.starts_with(&other));
    }
    let describes = |there: &String| {
        let Some((place, link)) = there.split_once(" has ") else { return false };
        let rest = line.strip_prefix(place).and_then(|rest| rest.strip_prefix(' '));
        let about = |rest: &str| rest.split([' ', '/', '=']).any(|word| word == link);
        there != line && rest.is_some_and(about)
    };
    all.iter().any(describes)
}

fn path(rest: &str) -> &str {
    rest.split(' ').next().unwrap_or_default()
}

/// Whether `line` is `pattern`, where `*` stands for anything.
fn matches(pattern: &str, line: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut last = None;
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
        last = Some(part);
    }
    match last {
        None => rest.is_empty(),
        Some(part) => part.is_empty() || line.ends_with(part),
    }
}

/// One of the two nodes.
struct Side<'a> {
    case: &'a Case,
    path: &'a str,
    node: Node,
    pods: Vec<Pod>,
    roles: Roles,
    facts: Facts,
    /// Errors that do not depend on the other side.
    wrong: String,
}

impl Side<'_> {
    fn run(case: &Case, path: &str) -> (Facts, String) {
        let node = Node::new();
        let pods: Vec<Pod> = (1..=case.pods).map(|n| node.pod(&format!("p{n}"))).collect();
        node.sh(&format!("set -e\n{}", case.prepare));
        let mut roles = Roles::new(&format!("{:?}{:?}{}", case.plugins, case.env, case.prepare));
        roles.learn(&node, &pods);
        let mut side = Side { case, path, node, pods, roles, facts: Facts::new(), wrong: String::new() };
        let results: Vec<Option<Value>> = (0..side.pods.len()).map(|n| side.add(n)).collect();
        side.look("after ADD");
        for (n, result) in results.iter().enumerate() {
            if let Some(result) = result {
                side.check(n, result);
            }
        }
        for (n, result) in results.iter().enumerate() {
            side.del(n, result.as_ref());
            side.look(&format!("after DEL p{}", n + 1));
        }
        (side.facts, side.wrong)
    }

    fn config(&self, n: usize) -> Value {
        let mut config = self.case.plugins[n].clone();
        config["name"] = json!("net");
        config["cniVersion"] = json!(self.case.version);
        config
    }

    fn call(&self, verb: &str, pod: usize, plugin: usize, prev: Option<&Value>) -> Output {
        let mut call = Invocation::new(&self.node, self.path, verb, &self.pods[pod], &self.config(plugin));
        for (name, value) in &self.case.env {
            call = call.env(name, value);
        }
        match prev {
            Some(prev) => call.prev(prev).run(),
            None => call.run(),
        }
    }

    /// Records the outcome of a call; returns the result or the error text.
    fn note(&mut self, what: &str, output: &Output) -> Result<Value, String> {
        self.facts.insert(format!("{what} exit = {}", output.status));
        if output.status == 0 {
            return Ok(output.result());
        }
        let printed: Value = serde_json::from_str(&output.stdout).unwrap_or_default();
        self.facts.insert(format!("{what} error code = {}", printed["code"]));
        Err(format!("{}{}", output.stdout, output.stderr))
    }

    fn add(&mut self, pod: usize) -> Option<Value> {
        let (mut result, says) = (Value::Null, self.case.says.filter(|_| pod + 1 == self.pods.len()));
        for plugin in 0..self.case.plugins.len() {
            let what = format!("ADD p{} by {}", pod + 1, self.kind(plugin));
            let output = self.call("ADD", pod, plugin, Some(&result).filter(|_| plugin > 0));
            match self.note(&what, &output) {
                Ok(printed) => result = printed,
                Err(said) => {
                    if !says.is_some_and(|says| said.contains(says)) {
                        self.wrong += &format!("{what} from {}: {said}\n", self.path);
                    }
                    return None;
                }
            }
            self.roles.learn(&self.node, &self.pods);
            let mut lines = Facts::new();
            leaves(&what, &result, &mut lines);
            self.facts.extend(lines.iter().map(|line| self.roles.normalize(line)).collect::<Vec<_>>());
        }
        if says.is_some() {
            self.wrong += &format!("ADD p{} from {} should fail\n", pod + 1, self.path);
        }
        Some(result)
    }

    fn kind(&self, plugin: usize) -> &str {
        self.case.plugins[plugin]["type"].as_str().unwrap_or("?")
    }

    fn check(&mut self, pod: usize, result: &Value) {
        for plugin in 0..self.case.plugins.len() {
            let output = self.call("CHECK", pod, plugin, Some(result));
            let _ = self.note(&format!("CHECK p{} by {}", pod + 1, self.kind(plugin)), &output);
        }
    }

    fn del(&mut self, pod: usize, result: Option<&Value>) {
        for plugin in (0..self.case.plugins.len()).rev() {
            let output = self.call("DEL", pod, plugin, result);
            let _ = self.note(&format!("DEL p{} by {}", pod + 1, self.kind(plugin)), &output);
        }
    }

    fn look(&mut self, when: &str) {
        let facts = self.node.facts(&self.pods, &mut self.roles);
        self.facts.extend(facts.into_iter().map(|fact| format!("{when}: {fact}")));
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_have_stars() {
        assert!(
            matches("a*c", "abc") && matches("a*", "a") && matches("*c", "abc") && matches("a*b*c", "a1b2c")
        );
        assert!(!matches("a*c", "abd") && !matches("abc", "abcd") && !matches("b*", "abc"));
        assert!(matches("a*b", "abab"));
    }
}
