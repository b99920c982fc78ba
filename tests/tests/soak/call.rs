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

/// What came of it.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The exit status; negative is a signal.
    pub status: i32,
    /// What it printed on either stream.
    pub text: String,
    /// The result, if it printed one.
    pub value: Option<Value>,
}

impl Call<'_> {
    /// Runs it to its end.
    pub fn run(&self) -> Answer {
        answer(self.start())
    }

    /// Runs it, does something after a while, and waits for its end.
    pub fn run_and(&self, delay: Duration, meanwhile: impl FnOnce()) -> Answer {
        let child = self.start();
        std::thread::sleep(delay);
        meanwhile();
        answer(child)
    }

    /// Runs it and kills it after a while, if it has not ended by then.
    pub fn run_and_kill(&self, delay: Duration) -> Answer {
        let mut child = self.start();
        std::thread::sleep(delay);
        let _ = child.kill();
        answer(child)
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
        // It may have been refused already, and be gone.
        let _ = child.stdin.take().expect("stdin").write_all(self.config.to_string().as_bytes());
        child
    }
}

fn answer(child: Child) -> Answer {
    let output = child.wait_with_output().expect("wait");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let status = output.status.code().unwrap_or_else(|| -output.status.signal().unwrap_or(0));
    let value = serde_json::from_slice(&output.stdout).ok();
    Answer { status, text: text(&output.stdout) + &text(&output.stderr), value }
}

impl Answer {
    /// It was killed.
    pub fn was_killed(&self) -> bool {
        self.status == -9
    }

    /// It did what it should.
    pub fn is_ok(&self) -> bool {
        self.status == 0
    }

    /// What it says in few words.
    pub fn said(&self) -> String {
        match self.status {
            0 => "done".into(),
            -9 => "killed".into(),
            status => {
                let reported = self.value.as_ref().and_then(|value| value["msg"].as_str());
                format!("status {status}: {}", reported.unwrap_or(&self.text).replace('\n', " "))
            }
        }
    }
}
