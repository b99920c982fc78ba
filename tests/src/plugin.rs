//! Executing one plugin as a runtime does.

use std::io::Write;
use std::process::Stdio;

use serde_json::Value;

use crate::{Node, Pod};

/// One execution of a plugin: verb, pod, config.
#[derive(Clone, Debug)]
pub struct Invocation<'a> {
    node: &'a Node,
    path: String,
    env: Vec<(String, String)>,
    absent: Vec<String>,
    config: Value,
}

/// The outcome of a program.
#[derive(Clone, Debug)]
pub struct Output {
    /// The exit status; negative is a signal.
    pub status: i32,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl<'a> Invocation<'a> {
    /// `verb` for `pod` on `node` with the plugins of `path`; the interface is `eth0`.
    pub fn new(node: &'a Node, path: &str, verb: &str, pod: &Pod, config: &Value) -> Invocation<'a> {
        let env = [
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", &pod.name),
            ("CNI_NETNS", &pod.netns),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", path),
            ("CNI_ARGS", ""),
        ];
        let env = env.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        Invocation { node, path: path.into(), env, absent: Vec::new(), config: config.clone() }
    }

    /// Sets a variable.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Unsets a variable.
    pub fn without(mut self, name: &str) -> Self {
        self.env.retain(|(other, _)| other != name);
        self.absent.push(name.into());
        self
    }

    /// Sets `prevResult`, the result of the previous plugins.
    pub fn prev(mut self, result: &Value) -> Self {
        self.config["prevResult"] = result.clone();
        self
    }

    /// Runs the plugin that the config's `type` names.
    pub fn run(&self) -> Output {
        self.run_with(&self.config.to_string(), &[])
    }

    /// Runs it behind a wrapper such as `strace`.
    pub fn run_behind(&self, wrapper: &[&str]) -> Output {
        self.run_with(&self.config.to_string(), wrapper)
    }

    /// Runs it with this standard input, behind a wrapper such as `strace`.
    pub fn run_with(&self, stdin: &str, wrapper: &[&str]) -> Output {
        self.run_bytes(stdin.as_bytes(), wrapper)
    }

    /// As [`run_with`](Self::run_with), with any bytes.
    pub fn run_bytes(&self, stdin: &[u8], wrapper: &[&str]) -> Output {
        let kind = self.config["type"].as_str().unwrap_or("bridge");
        let file = self
            .path
            .split(':')
            .map(|folder| format!("{folder}/{kind}"))
            .find(|file| std::path::Path::new(file).exists())
            .unwrap_or_else(|| panic!("no plugin {kind} in {}", self.path));
        let mut words: Vec<&str> = wrapper.to_vec();
        words.push(&file);
        let mut command = self.node.command(words[0]);
        command.args(&words[1..]).envs(self.env.iter().map(|(name, value)| (name, value)));
        for name in &self.absent {
            command.env_remove(name);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("spawn");
        let _ = child.stdin.take().expect("stdin").write_all(stdin);
        child.wait_with_output().expect("wait").into()
    }
}

impl From<std::process::Output> for Output {
    fn from(output: std::process::Output) -> Output {
        use std::os::unix::process::ExitStatusExt;
        Output {
            status: output.status.code().unwrap_or_else(|| -output.status.signal().unwrap_or(0)),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Output {
    /// The result; panics if the plugin failed.
    pub fn result(&self) -> Value {
        assert_eq!(self.status, 0, "{}{}", self.stdout, self.stderr);
        match self.stdout.trim() {
            "" => Value::Null,
            printed => serde_json::from_str(printed).unwrap_or_else(|error| panic!("{error}: {printed}")),
        }
    }

    /// The error object; panics if the plugin succeeded, crashed, or printed something else.
    pub fn error(&self) -> (u64, String) {
        assert_eq!(self.status, 1, "expected a CNI error: {}{}", self.stdout, self.stderr);
        let error: Value = serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("not a CNI error ({error}): {}{}", self.stdout, self.stderr));
        let code = error["code"].as_u64().unwrap_or_else(|| panic!("no code: {error}"));
        (code, error["msg"].as_str().unwrap_or_else(|| panic!("no msg: {error}")).to_string())
    }
}
