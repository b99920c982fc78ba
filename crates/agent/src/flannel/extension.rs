//! The backend `extension`: the administrator's own routes. The agent runs commands of the network config when the node
//! starts, and for each node that joins, changes or leaves.
//!
//! Commands, variables and input are flannel's: a command is split at spaces, `$NAME` in a word is replaced, and no
//! shell is involved. In addition, nodes that left while the agent was down are removed: a file lists the nodes that
//! were added.

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use podwire_fs::FileError;
use podwire_subnets::{NetConf, Node, Underlay};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Error, Result};

/// The commands of the network config.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extension {
    /// Its output is registered for the other nodes.
    pub pre_startup: String,
    /// It runs when the node has its pod CIDR.
    pub post_startup: String,
    /// It runs for each node that joins.
    pub add: String,
    /// It runs for each node that leaves.
    pub remove: String,
    /// The file that lists the nodes that were added.
    pub record: PathBuf,
}

/// Variables and input of the commands for another node.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct ExtensionNode {
    variables: BTreeMap<String, String>,
    input: String,
}

type Variables = BTreeMap<String, String>;

impl Extension {
    /// Runs the first command. Returns what this node registers for the others.
    pub fn pre_startup_data(&self) -> Result<Option<Value>> {
        let said = run(&self.pre_startup, &Variables::new(), "")?;
        Ok((!self.pre_startup.is_empty()).then(|| Value::String(said.trim().into())))
    }

    /// Runs the command for a node that has its pod CIDR.
    pub fn run_post_startup(&self, own: &Node, conf: &NetConf) -> Result<()> {
        let mut variables = variables_of(own);
        let network = conf.network.map(|net| net.to_string());
        let network = network.or(conf.ipv6_network.map(|net| net.to_string())).unwrap_or_default();
        variables.insert("NETWORK".into(), network);
        run(&self.post_startup, &variables, "").map(drop)
    }

    /// Runs the commands for nodes that joined or left. Returns what was done, and what failed.
    pub fn apply(&self, nodes: &[ExtensionNode]) -> Result<(Vec<String>, Vec<String>)> {
        let (mut done, mut failed) = (Vec::new(), Vec::new());
        let mut added = self.added()?;
        let mut call = |verb: &str, command: &str, node: &ExtensionNode| {
            let name = node.variables.get("SUBNET").or(node.variables.get("IPV6SUBNET")).cloned();
            let name = name.unwrap_or_default();
            let called = run(command, &node.variables, &node.input);
            let is_done = called.is_ok();
            match called {
                Ok(_) => done.push(format!("{verb} {name} by command")),
                Err(error) => failed.push(format!("{verb} {name}: {error}")),
            }
            is_done
        };
        for gone in added.clone().iter().filter(|one| !nodes.contains(one)) {
            if call("remove", &self.remove, gone) {
                added.retain(|one| one != gone);
            }
        }
        for new in nodes.iter().filter(|one| !added.contains(one)).cloned().collect::<Vec<_>>() {
            if call("add", &self.add, &new) {
                added.push(new);
            }
        }
        if !done.is_empty() {
            self.write_record(&added)?;
        }
        Ok((done, failed))
    }

    fn added(&self) -> Result<Vec<ExtensionNode>> {
        match fs::read(&self.record) {
            // Without a readable list, commands may run twice, as with flannel.
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).unwrap_or_default()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(FileError::at("read", &self.record)(error).into()),
        }
    }

    fn write_record(&self, added: &[ExtensionNode]) -> Result<()> {
        if let Some(dir) = self.record.parent() {
            podwire_fs::create_state_dir(dir).map_err(FileError::at("create", dir))?;
        }
        let bytes = serde_json::to_vec(added).unwrap_or_default();
        Ok(podwire_fs::replace(&self.record, &bytes, 0o644).map_err(FileError::at("write", &self.record))?)
    }
}

impl ExtensionNode {
    /// The variables and the input for a node.
    pub fn of(node: &Node) -> ExtensionNode {
        let input = match node.backend.data.as_ref().or(node.backend.data_v6.as_ref()) {
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
            None => String::new(),
        };
        ExtensionNode { variables: variables_of(node), input }
    }
}

fn variables_of(node: &Node) -> Variables {
    let Underlay { v4, v6 } = node.underlay;
    let facts = [
        ("SUBNET", node.pod_cidrs.v4.map(|range| range.to_string())),
        ("IPV6SUBNET", node.pod_cidrs.v6.map(|range| range.to_string())),
        ("PUBLIC_IP", v4.map(|ip| ip.to_string())),
        ("PUBLIC_IPV6", v6.map(|ip| ip.to_string())),
    ];
    facts.into_iter().filter_map(|(name, fact)| Some((name.to_owned(), fact?))).collect()
}

/// Runs a command and returns its output. An empty command does nothing.
fn run(command: &str, variables: &Variables, input: &str) -> Result<String> {
    let words: Vec<String> = command.split_whitespace().map(|word| expand(word, variables)).collect();
    let Some((program, arguments)) = words.split_first() else { return Ok(String::new()) };
    let failed = |why: String| Error::Command { command: command.into(), why };
    let mut child = Command::new(program)
        .args(arguments)
        .envs(variables)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A command need not read its input.
        drop(stdin.write_all(input.as_bytes()));
    }
    let output = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(failed(format!("{}: {stderr}", output.status)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Replaces `$NAME` and `${NAME}`, like Go's `os.Expand`; an unknown name becomes empty.
fn expand(word: &str, variables: &Variables) -> String {
    let mut text = String::new();
    let mut rest = word;
    while let Some((before, after)) = rest.split_once('$') {
        text += before;
        let (name, behind) = match after.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
            Some(found) => found,
            None => {
                let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
                after.split_at(after.find(|c| !is_name(c)).unwrap_or(after.len()))
            }
        };
        text += variables.get(name).map_or("", String::as_str);
        rest = behind;
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use podwire_subnets::{Backend, LeaseTerm, PodCidrs};

    fn node(number: u8, data: &str) -> Node {
        let ranges = PodCidrs { v4: format!("10.244.{number}.0/24").parse().ok(), v6: None };
        let underlay = Underlay { v4: Some([192, 0, 2, number].into()), v6: None };
        let data = Some(Value::String(data.into()));
        let backend = Backend { kind: "extension".into(), data, data_v6: None };
        Node {
            name: format!("n{number}"),
            pod_cidrs: ranges,
            underlay,
            backend,
            lease_term: LeaseTerm::Permanent,
        }
    }

    #[test]
    fn variables_are_expanded_without_a_shell() {
        let variables = variables_of(&node(1, ""));
        assert_eq!(expand("via=$PUBLIC_IP/${SUBNET}$NOBODY;", &variables), "via=192.0.2.1/10.244.1.0/24;");
        assert_eq!(run("echo $SUBNET ; echo $(id)", &variables, "").unwrap(), "10.244.1.0/24 ; echo (id)\n");
        assert_eq!(run("", &variables, "").unwrap(), "");
        assert!(run("false", &variables, "").unwrap_err().to_string().contains("false"));
        assert!(run("no-such-program-at-all", &variables, "").is_err());
    }

    #[test]
    fn each_node_is_added_and_removed_once_across_restarts() {
        let dir = std::env::temp_dir().join(format!("podwire-extension-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let log = dir.join("log");
        let script = dir.join("script");
        fs::write(&script, "echo $1 $SUBNET $PUBLIC_IP $(cat) >> $2\n").unwrap();
        let command = |verb: &str| format!("sh {} {verb} {}", script.display(), log.display());
        let record = dir.join("record");
        let extension = || Extension {
            add: command("add"),
            remove: command("remove"),
            record: record.clone(),
            ..Extension::default()
        };
        let nodes = |all: &[Node]| all.iter().map(ExtensionNode::of).collect::<Vec<_>>();
        extension().apply(&nodes(&[node(1, "a"), node(2, "b")])).unwrap();
        extension().apply(&nodes(&[node(1, "a"), node(2, "b")])).unwrap();
        extension().apply(&nodes(&[node(2, "changed")])).unwrap();
        let log_text = fs::read_to_string(&log).unwrap();
        assert_eq!(
            log_text.lines().collect::<Vec<_>>(),
            [
                "add 10.244.1.0/24 192.0.2.1 a",
                "add 10.244.2.0/24 192.0.2.2 b",
                "remove 10.244.1.0/24 192.0.2.1 a",
                "remove 10.244.2.0/24 192.0.2.2 b",
                "add 10.244.2.0/24 192.0.2.2 changed",
            ]
        );
        // A command that fails is retried.
        let broken = Extension { add: "false".into(), record: record.clone(), ..Extension::default() };
        let (done, failed) = broken.apply(&nodes(&[node(2, "changed"), node(3, "c")])).unwrap();
        assert!(done.is_empty() && failed.len() == 1 && failed[0].contains("10.244.3.0/24"), "{failed:?}");
        extension().apply(&nodes(&[node(2, "changed"), node(3, "c")])).unwrap();
        assert!(fs::read_to_string(&log).unwrap().ends_with("add 10.244.3.0/24 192.0.2.3 c\n"));
        fs::remove_dir_all(dir).unwrap();
    }
}
