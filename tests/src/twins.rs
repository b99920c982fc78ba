//! The same requests to Debian's Go plugins and to ours, each on a node of its own, and what differs.

use std::collections::BTreeSet;

use serde_json::{json, Value};

use crate::facts::{leaves, Facts, Roles};
use crate::{ours, Invocation, Node, Output, Pod, GO};

/// What both are asked to do.
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

/// Something that we do differently on purpose.
#[derive(Clone, Copy, Debug)]
pub struct Difference {
    /// What it is called here and in the users' page about it.
    pub name: &'static str,
    /// The lines by which it shows: `-` is so with the Go plugins, `+` with ours; `*` stands for anything.
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

    /// After this script on the node. Pods `p1`, `p2`… are there already.
    pub fn after(mut self, script: &str) -> Case {
        self.prepare = script.into();
        self
    }

    /// With this variable.
    pub fn env(mut self, name: &'static str, value: &'static str) -> Case {
        self.env.push((name, value));
        self
    }

    /// The last pod's ADD fails, and both say this.
    pub fn fails(mut self, says: &'static str) -> Case {
        self.says = Some(says);
        self
    }

    /// These differences show, all of them, and no other.
    pub fn differs(mut self, differences: &[&'static str]) -> Case {
        self.differs.extend(differences);
        self
    }

    /// What it says that it differs in.
    pub fn differences(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.differs.iter().copied()
    }

    /// Runs the case on both nodes and compares.
    pub fn run(&self, known: &[Difference]) {
        let (go, ours) = std::thread::scope(|scope| {
            let go = scope.spawn(|| Side::run(self, GO));
            (go.join(), Side::run(self, &ours()))
        });
        let go = go.unwrap_or_else(|_| panic!("{}: the Go side", self.name));
        let mut shown = BTreeSet::new();
        let mut unknown = Vec::new();
        let lines = go.difference(&ours).map(|line| format!("- {line}"));
        for line in lines.chain(ours.difference(&go).map(|line| format!("+ {line}"))) {
            match known.iter().find(|one| one.lines.iter().any(|pattern| matches(pattern, &line))) {
                Some(difference) => drop(shown.insert(difference.name)),
                None => unknown.push(line),
            }
        }
        let mut complaints = unknown.join("\n");
        if shown != self.differs {
            complaints += &format!("\nexpected differences {:?}\nbut these show   {shown:?}", self.differs);
        }
        assert!(complaints.is_empty(), "{}: Go (-) and ours (+) differ:\n{complaints}", self.name);
    }
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
}

impl Side<'_> {
    fn run(case: &Case, path: &str) -> Facts {
        let node = Node::new();
        let pods: Vec<Pod> = (1..=case.pods).map(|n| node.pod(&format!("p{n}"))).collect();
        node.sh(&format!("set -e\n{}", case.prepare));
        let roles = Roles::new(&format!("{:?}{:?}{}", case.plugins, case.env, case.prepare));
        let mut side = Side { case, path, node, pods, roles, facts: Facts::new() };
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
        side.facts
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

    /// Writes down what came of a call; the result, unless it failed.
    fn note(&mut self, what: &str, output: &Output) -> Option<Value> {
        self.facts.insert(format!("{what} exit = {}", output.status));
        if output.status == 0 {
            return Some(output.result());
        }
        self.facts.insert(format!("{what} error code = {}", output.error().0));
        None
    }

    fn add(&mut self, pod: usize) -> Option<Value> {
        let (mut result, last) = (Value::Null, pod + 1 == self.pods.len());
        for plugin in 0..self.case.plugins.len() {
            let kind = self.case.plugins[plugin]["type"].as_str().unwrap_or_default();
            let what = format!("ADD p{} by {kind}", pod + 1);
            let output = self.call("ADD", pod, plugin, Some(&result).filter(|_| plugin > 0));
            match (self.note(&what, &output), self.case.says.filter(|_| last)) {
                (Some(printed), _) => result = printed,
                (None, Some(says)) => {
                    let (_, said) = output.error();
                    assert!(said.contains(says), "{} {what} from {}: {said}", self.case.name, self.path);
                    return None;
                }
                (None, None) => panic!("{} {what} from {}: {}", self.case.name, self.path, output.stdout),
            }
            self.roles.learn(&self.node, &self.pods);
            let mut lines = Facts::new();
            leaves(&what, &result, &mut lines);
            self.facts.extend(lines.iter().map(|line| self.roles.tell(line)).collect::<Vec<_>>());
        }
        assert!(!last || self.case.says.is_none(), "{} succeeded with {}", self.case.name, self.path);
        Some(result)
    }

    fn check(&mut self, pod: usize, result: &Value) {
        for plugin in 0..self.case.plugins.len() {
            let output = self.call("CHECK", pod, plugin, Some(result));
            let what = format!("CHECK p{} by {}", pod + 1, self.case.plugins[plugin]["type"].as_str().unwrap_or("?"));
            self.note(&what, &output);
        }
    }

    fn del(&mut self, pod: usize, result: Option<&Value>) {
        for plugin in (0..self.case.plugins.len()).rev() {
            let output = self.call("DEL", pod, plugin, result);
            let what = format!("DEL p{} by {}", pod + 1, self.case.plugins[plugin]["type"].as_str().unwrap_or("?"));
            self.note(&what, &output);
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
        assert!(matches("a*c", "abc") && matches("a*", "a") && matches("*c", "abc") && matches("a*b*c", "a1b2c"));
        assert!(!matches("a*c", "abd") && !matches("abc", "abcd") && !matches("b*", "abc"));
        assert!(matches("a*b", "abab"));
    }
}
