//! extension: the administrator's own roads. Commands of the network's config are run when the node comes up, and for each node that
//! joins, changes or leaves. The one place here where running a program is the purpose.
//!
//! Commands, variables and input are flannel's: words are split at spaces and `$NAME` in them is replaced; there is no shell. What flannel
//! does not do: nodes that left while the agent was down are removed too, since the ones that were added stand in a file.

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use podwire_subnets::{NetConf, Node, Underlay};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Error, Result};

/// What the config says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extension {
    /// Its output is told to the other nodes.
    pub before: String,
    /// When the node has its range.
    pub after: String,
    /// For a node that is there.
    pub add: String,
    /// For one that is not there any more.
    pub remove: String,
    /// The nodes that were added.
    pub record: PathBuf,
}

/// What commands are told of another node.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Neighbour {
    variables: BTreeMap<String, String>,
    input: String,
}

type Variables = BTreeMap<String, String>;

impl Extension {
    /// What this node tells the others, in the words of its own command.
    pub fn prepare(&self) -> Result<Option<Value>> {
        let said = run(&self.before, &Variables::new(), "")?;
        Ok((!self.before.is_empty()).then(|| Value::String(said.trim().into())))
    }

    /// The node has its range.
    pub fn begin(&self, own: &Node, conf: &NetConf) -> Result<()> {
        let mut variables = described(own);
        let network = conf.network.map(|net| net.to_string());
        let network = network.or(conf.ipv6_network.map(|net| net.to_string())).unwrap_or_default();
        variables.insert("NETWORK".into(), network);
        run(&self.after, &variables, "").map(drop)
    }

    /// Makes the nodes that were added those that are there. Returns what was done, and what failed.
    pub fn apply(&self, nodes: &[Neighbour]) -> Result<(Vec<String>, Vec<String>)> {
        let (mut done, mut failed) = (Vec::new(), Vec::new());
        let mut added = self.added()?;
        let mut call = |verb: &str, command: &str, node: &Neighbour| {
            let name = node.variables.get("SUBNET").or(node.variables.get("IPV6SUBNET")).cloned();
            let name = name.unwrap_or_default();
            let called = run(command, &node.variables, &node.input);
            let well = called.is_ok();
            match called {
                Ok(_) => done.push(format!("{verb} {name} by command")),
                Err(error) => failed.push(format!("{verb} {name}: {error}")),
            }
            well
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
            self.remember(&added)?;
        }
        Ok((done, failed))
    }

    fn added(&self) -> Result<Vec<Neighbour>> {
        match fs::read(&self.record) {
            // One that cannot be read knows nothing: commands may come twice, as with flannel.
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).unwrap_or_default()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(Error::file("read", &self.record)(error)),
        }
    }

    fn remember(&self, added: &[Neighbour]) -> Result<()> {
        if let Some(folder) = self.record.parent() {
            fs::create_dir_all(folder).map_err(Error::file("make folder", folder))?;
        }
        let bytes = serde_json::to_vec(added).unwrap_or_default();
        let new = self.record.with_extension("new");
        let write = || fs::write(&new, bytes).and_then(|()| fs::rename(&new, &self.record));
        write().map_err(Error::file("write", &self.record))
    }
}

impl Neighbour {
    /// As commands are told of it.
    pub fn of(node: &Node) -> Neighbour {
        let input = match node.backend.data.as_ref().or(node.backend.data_v6.as_ref()) {
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
            None => String::new(),
        };
        Neighbour { variables: described(node), input }
    }
}

fn described(node: &Node) -> Variables {
    let Underlay { v4, v6 } = node.underlay;
    let facts = [
        ("SUBNET", node.pod_cidrs.v4.map(|range| range.to_string())),
        ("IPV6SUBNET", node.pod_cidrs.v6.map(|range| range.to_string())),
        ("PUBLIC_IP", v4.map(|ip| ip.to_string())),
        ("PUBLIC_IPV6", v6.map(|ip| ip.to_string())),
    ];
    facts.into_iter().filter_map(|(name, fact)| Some((name.to_owned(), fact?))).collect()
}

/// Runs a command and returns what it said. An empty one is none.
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
        // One that does not read its input need not.
        drop(stdin.write_all(input.as_bytes()));
    }
    let output = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(failed(format!("{}: {said}", output.status)))
        }
    }
}

/// `$NAME` and `${NAME}`, as Go's `os.Expand`; a name that is not known is nothing.
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
    fn variables_are_put_into_words_and_nothing_is_a_shell() {
        let variables = described(&node(1, ""));
        assert_eq!(expand("via=$PUBLIC_IP/${SUBNET}$NOBODY;", &variables), "via=192.0.2.1/10.244.1.0/24;");
        assert_eq!(run("echo $SUBNET ; echo $(id)", &variables, "").unwrap(), "10.244.1.0/24 ; echo (id)\n");
        assert_eq!(run("", &variables, "").unwrap(), "");
        assert!(run("false", &variables, "").unwrap_err().to_string().contains("false"));
        assert!(run("no-such-program-at-all", &variables, "").is_err());
    }

    #[test]
    fn each_node_is_added_once_and_removed_once_also_by_another_agent() {
        let folder = std::env::temp_dir().join(format!("podwire-extension-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let log = folder.join("log");
        let script = folder.join("script");
        fs::write(&script, "echo $1 $SUBNET $PUBLIC_IP $(cat) >> $2\n").unwrap();
        let command = |verb: &str| format!("sh {} {verb} {}", script.display(), log.display());
        let record = folder.join("record");
        let extension = || Extension {
            add: command("add"),
            remove: command("remove"),
            record: record.clone(),
            ..Extension::default()
        };
        let nodes = |all: &[Node]| all.iter().map(Neighbour::of).collect::<Vec<_>>();
        extension().apply(&nodes(&[node(1, "a"), node(2, "b")])).unwrap();
        extension().apply(&nodes(&[node(1, "a"), node(2, "b")])).unwrap();
        extension().apply(&nodes(&[node(2, "changed")])).unwrap();
        let said = fs::read_to_string(&log).unwrap();
        assert_eq!(
            said.lines().collect::<Vec<_>>(),
            [
                "add 10.244.1.0/24 192.0.2.1 a",
                "add 10.244.2.0/24 192.0.2.2 b",
                "remove 10.244.1.0/24 192.0.2.1 a",
                "remove 10.244.2.0/24 192.0.2.2 b",
                "add 10.244.2.0/24 192.0.2.2 changed",
            ]
        );
        // One that fails is tried again.
        let broken = Extension { add: "false".into(), record: record.clone(), ..Extension::default() };
        let (done, failed) = broken.apply(&nodes(&[node(2, "changed"), node(3, "c")])).unwrap();
        assert!(done.is_empty() && failed.len() == 1 && failed[0].contains("10.244.3.0/24"), "{failed:?}");
        extension().apply(&nodes(&[node(2, "changed"), node(3, "c")])).unwrap();
        assert!(fs::read_to_string(&log).unwrap().ends_with("add 10.244.3.0/24 192.0.2.3 c\n"));
        fs::remove_dir_all(folder).unwrap();
    }
}
