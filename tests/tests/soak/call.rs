//! One execution of a plugin. The soak's process is already on the node.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

/// A verb for a plugin.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    /// `CNI_COMMAND`.
    pub verb: &'a str,
    /// The folder of the plugins, `CNI_PATH`.
    pub folder: &'a str,
    /// `CNI_CONTAINERID`.
    pub container: &'a str,
    /// `CNI_IFNAME`.
    pub ifname: &'a str,
    /// `CNI_NETNS`.
    pub netns: &'a str,
    /// Standard input.
    pub config: Value,
}

/// The outcome of a call.
#[derive(Clone, Debug)]
pub struct Output {
    /// The exit status; negative is a signal.
    pub status: i32,
    /// What it printed on either stream.
    pub text: String,
    /// The result, if it printed one.
    pub value: Option<Value>,
}

impl Call<'_> {
    /// Runs it to its end.
    pub fn run(&self) -> Output {
        output(self.start())
    }

    /// Runs it, calls `meanwhile` after a delay, and waits for its end.
    pub fn run_and(&self, delay: Duration, meanwhile: impl FnOnce()) -> Output {
        let child = self.start();
        std::thread::sleep(delay);
        meanwhile();
        output(child)
    }

    /// Runs it and kills it after a delay, if it has not ended by then.
    pub fn run_and_kill(&self, delay: Duration) -> Output {
        let mut child = self.start();
        std::thread::sleep(delay);
        let _ = child.kill();
        output(child)
    }

    /// Verb and plugin.
    pub fn what(&self) -> String {
        format!("{} {}", self.verb, self.config["type"])
    }

    fn start(&self) -> Child {
        let kind = self.config["type"].as_str().expect("a type");
        let mut child = Command::new(Path::new(self.folder).join(kind))
            .env("CNI_COMMAND", self.verb)
            .env("CNI_PATH", self.folder)
            .env("CNI_CONTAINERID", self.container)
            .env("CNI_IFNAME", self.ifname)
            .env("CNI_NETNS", self.netns)
            .env("CNI_ARGS", "")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{}/{kind}: {error}", self.folder));
        // The plugin may have failed and ended before it reads all input.
        let _ = child.stdin.take().expect("stdin").write_all(self.config.to_string().as_bytes());
        child
    }
}

fn output(child: Child) -> Output {
    let output = child.wait_with_output().expect("wait");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let status = output.status.code().unwrap_or_else(|| -output.status.signal().unwrap_or(0));
    let value = serde_json::from_slice(&output.stdout).ok();
    Output { status, text: text(&output.stdout) + &text(&output.stderr), value }
}

impl Output {
    /// Whether it was killed.
    pub fn was_killed(&self) -> bool {
        self.status == -9
    }

    /// Whether it succeeded.
    pub fn is_ok(&self) -> bool {
        self.status == 0
    }

    /// The outcome in one line.
    pub fn summary(&self) -> String {
        match self.status {
            0 => "done".into(),
            -9 => "killed".into(),
            status => {
                let message = self.value.as_ref().and_then(|value| value["msg"].as_str());
                format!("status {status}: {}", message.unwrap_or(&self.text).replace('\n', " "))
            }
        }
    }
}
