//! Programs on a machine of the lab. To run there, a process must have one thread only: so this program is started anew, as
//! `podwire lab exec`, and goes there before it does anything else.

use std::fs::OpenOptions;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use podwire_netlink::sys;
use podwire_sandbox::Process;
use serde_json::Value;

use crate::{Error, Lab, Result};

/// Always this program, whatever became of its file.
const SELF: &str = "/proc/self/exe";

impl Lab {
    /// Moves this process, which must have one thread only, to a machine; programs that it starts from now on run there, and
    /// end with the machine.
    pub fn enter(&self, machine: &str) -> Result<()> {
        let process = self.process(machine)?;
        let entered =
            process.open().and_then(|open| open.map(|fd| sys::enter_namespaces_of(fd.as_fd())).transpose());
        match entered.map_err(Error::file("enter the namespaces of", machine))? {
            Some(()) => Ok(()),
            // It ended just now.
            None => self.process(machine).map(drop),
        }
    }

    /// The machine that a command is meant for, and the pod if it is for one of those.
    pub fn find_target(&self, name: &str) -> Result<(String, Option<String>)> {
        if self.state.machines.contains_key(name) {
            return self.process(name).map(|_| (name.into(), None));
        }
        let key = podwire_sandbox::PodName::parse(name, "default").map(|pod| pod.key());
        let has_pod = |node: &String| {
            let folder = key.as_ref().map(|key| format!("{}/{key}", podwire_sandbox::DIR));
            folder.is_ok_and(|path| self.file(node, &path).is_ok_and(|folder| folder.is_dir()))
        };
        match self.nodes().into_iter().find(has_pod) {
            Some(node) => Ok((node, Some(name.into()))),
            None => Err(self.process(name).err().unwrap_or_else(|| self.home.unknown())),
        }
    }

    /// How this program is called on a machine: by its own path if it can be seen there.
    pub fn program(&self, machine: &str) -> String {
        let own = std::env::current_exe().ok().and_then(|path| path.to_str().map(String::from));
        let is_seen = |path: &String| self.file(machine, path).is_ok_and(|file| file.is_file());
        own.filter(is_seen).unwrap_or_else(|| SELF.into())
    }

    /// This program with these words, on a machine.
    fn inside(&self, machine: &str, options: &[&str], words: &[String]) -> Command {
        let own = std::env::current_exe().unwrap_or_else(|_| PathBuf::from(SELF));
        let mut command = Command::new(own);
        command.args(["lab", "exec", "--name", &self.state.plan.name]).args(options);
        command.args([machine, "--"]).args(words);
        command
    }

    /// Starts a program on a machine, to run as long as the machine does. What it says goes to the machine's log.
    pub(crate) fn start(&self, machine: &str, log: &str, words: &[String]) -> Result<Process> {
        let log = self.home.log(log);
        let file = OpenOptions::new().create(true).append(true).open(&log);
        let file = file.map_err(Error::file("open", &log))?;
        let failed = |said: String| Error::Inside {
            machine: machine.into(),
            doing: format!("start {}", words.first().map_or("", String::as_str)),
            said,
        };
        let mut command = self.inside(machine, &["--detached"], words);
        // Whoever interrupts what happens on the terminal does not mean this.
        command.process_group(0).stdin(Stdio::null()).stderr(file);
        let output = command.output().map_err(|error| failed(error.to_string()))?;
        let said = String::from_utf8_lossy(&output.stdout);
        let started = said.trim().parse().ok().filter(|_| output.status.success());
        let started = started.and_then(|pid| Process::of(pid).ok());
        let last = log.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        started.ok_or_else(|| failed(self.home.last_words(&last)))
    }

    /// Runs `podwire … --json` on many machines at once; returns what each said, in their order.
    pub(crate) fn ask(&self, doing: &str, questions: &[(String, Vec<String>)]) -> Vec<Result<Value>> {
        let failed = |machine: &str, said: String| Error::Inside {
            machine: machine.into(),
            doing: doing.into(),
            said,
        };
        let start = |(machine, words): &(String, Vec<String>)| {
            let mut command = self.inside(machine, &[], words);
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
        };
        let running: Vec<_> = questions.iter().map(start).collect();
        let hear = |(machine, child): (&String, std::io::Result<Child>)| {
            let output = child.and_then(Child::wait_with_output);
            let output = output.map_err(|error| failed(machine, error.to_string()))?;
            let words = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
            match serde_json::from_slice(&output.stdout) {
                Ok(answer) if output.status.success() => Ok(answer),
                _ => Err(failed(machine, words)),
            }
        };
        questions.iter().map(|(machine, _)| machine).zip(running).map(hear).collect()
    }

    /// This program's name on a machine, and these words behind it.
    pub(crate) fn own_words(&self, machine: &str, words: &[&str]) -> Vec<String> {
        std::iter::once(self.program(machine)).chain(words.iter().map(ToString::to_string)).collect()
    }
}
