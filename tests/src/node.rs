//! Nodes and pods in namespaces.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::Mutex;

use serde_json::Value;

use crate::Process;

/// A new namespace inherits the forwarding setting of the machine. Nodes start without forwarding.
const SETUP: &str = "set -e
mount -t tmpfs none /run
mount -t tmpfs none /var/lib
mount --bind /etc /etc
mount -o remount,bind,ro /etc
mkdir -p /run/netns /run/test /var/lib/cni
ip link set lo up
echo 0 >/proc/sys/net/ipv4/ip_forward
echo ready $$
exec cat >/dev/null";

/// A machine in namespaces.
#[derive(Debug)]
pub struct Node {
    holder: Child,
    /// The process in the node's namespaces: the holder, or one that it started.
    inside: u32,
    /// The namespaces of that process that are the node's, as flags of `nsenter`.
    namespaces: &'static [&'static str],
    /// Closed when the node is dropped, which ends the holder.
    stdin: Option<ChildStdin>,
    /// Programs that run until the node is dropped.
    companions: Mutex<Vec<Process>>,
}

/// A pod's namespace on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Its name, used as the container id too.
    pub name: String,
    /// The path of its namespace, on the node.
    pub netns: String,
}

impl Node {
    /// A fresh machine.
    pub fn new() -> Node {
        let mut holder = Command::new("unshare");
        holder.args(["--net", "--mount", "--propagation", "private", "--", "sh", "-c", SETUP]);
        Node::held_by(holder, &["--net", "--mount"])
    }

    /// A machine that `holder` creates and keeps. The program prints `ready` and the PID of a process in the machine's
    /// namespaces, and ends, together with the machine, when its standard input is closed.
    pub fn held_by(mut holder: Command, namespaces: &'static [&'static str]) -> Node {
        let started = holder.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut holder = started.expect("unshare (are you root?)");
        let stdin = holder.stdin.take();
        let mut line = String::new();
        BufReader::new(holder.stdout.take().expect("stdout"))
            .read_line(&mut line)
            .expect("the holder's first line");
        let inside = line.strip_prefix("ready ").and_then(|pid| pid.trim().parse().ok());
        let inside = inside.expect("a node needs root: network and mount namespaces");
        Node { holder, inside, namespaces, stdin, companions: Mutex::new(Vec::new()) }
    }

    /// Keeps a program running until the node is dropped.
    pub fn accompany(&self, program: Process) {
        self.companions.lock().expect("companions").push(program);
    }

    /// The process that holds the node: its namespaces and files are under `/proc/<pid>`.
    pub fn pid(&self) -> u32 {
        self.inside
    }

    /// A command that will run on the node.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(self.namespaces).args(["--target", &self.inside.to_string(), "--", program]);
        command
    }

    /// Runs a program on the node, with these variables in addition to the test's environment.
    pub fn output(&self, words: &[&str], env: &[(&str, &str)]) -> crate::Output {
        let mut command = self.command(words[0]);
        let output = command
            .args(&words[1..])
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .output()
            .expect("nsenter");
        crate::Output::from(output)
    }

    /// Runs a shell script on the node; panics if it fails. Returns its standard output.
    pub fn sh(&self, script: &str) -> String {
        let output = self.try_sh(script);
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{script}\n{}\n{stdout}{stderr}", output.status);
        stdout
    }

    /// Runs a shell script on the node.
    pub fn try_sh(&self, script: &str) -> Output {
        self.command("sh").args(["-c", script]).stdin(Stdio::null()).output().expect("nsenter")
    }

    /// Whether a shell script succeeds on the node.
    pub fn can(&self, script: &str) -> bool {
        self.try_sh(script).status.success()
    }

    /// The JSON that a shell script prints on the node.
    pub fn json(&self, script: &str) -> Value {
        let printed = self.sh(script);
        if printed.trim().is_empty() {
            return Value::Array(Vec::new());
        }
        serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{script}: {error}\n{printed}"))
    }

    /// Writes a file on the node.
    pub fn write(&self, path: &str, content: &str) {
        let script = format!("mkdir -p \"$(dirname {path})\" && cat > {path}");
        let mut child =
            self.command("sh").args(["-c", &script]).stdin(Stdio::piped()).spawn().expect("nsenter");
        child.stdin.take().expect("stdin").write_all(content.as_bytes()).expect("write");
        assert!(child.wait().expect("wait").success(), "write {path}");
    }

    /// A new pod.
    pub fn pod(&self, name: &str) -> Pod {
        self.sh(&format!("ip netns add {name}"));
        Pod { name: name.into(), netns: format!("/run/netns/{name}") }
    }

    /// Deletes a pod's namespace.
    pub fn remove(&self, pod: &Pod) {
        self.sh(&format!("ip netns delete {}", pod.name));
    }
}

impl Default for Node {
    fn default() -> Node {
        Node::new()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.companions.lock().expect("companions").clear();
        drop(self.stdin.take());
        let _ = self.holder.wait();
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
