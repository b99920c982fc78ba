//! Programs on a machine of the lab. A process that enters namespaces must have one thread only, so the lab starts this
//! program again, as `podwire lab exec`, which enters the machine first.

use std::fs::OpenOptions;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use podwire_fs::FileError;
use podwire_netlink::sys;
use podwire_sandbox::Process;
use serde_json::Value;

use crate::{Error, Lab, Result};

/// This program, also if its file was replaced.
const SELF: &str = "/proc/self/exe";

impl Lab {
    /// Enters the namespaces of a machine. This process must have one thread only. Programs that it starts afterwards run on
    /// the machine and end with it.
    pub fn enter(&self, machine: &str) -> Result<()> {
        let process = self.process(machine)?;
        let entered =
            process.open().and_then(|open| open.map(|fd| sys::enter_namespaces_of(fd.as_fd())).transpose());
        match entered.map_err(FileError::at("enter the namespaces of", machine))? {
            Some(()) => Ok(()),
            // The machine ended just now: report that.
            None => self.process(machine).map(drop),
        }
    }

    /// Finds the machine with this name, or the pod with this name and its node.
    pub fn find_target(&self, name: &str) -> Result<(String, Option<String>)> {
        if self.state.machines.contains_key(name) {
            return self.process(name).map(|_| (name.into(), None));
        }
        let key = podwire_sandbox::PodName::parse(name, "default").map(|pod| pod.key());
        let has_pod = |node: &String| {
            let dir = key.as_ref().map(|key| format!("{}/{key}", podwire_sandbox::DIR));
            dir.is_ok_and(|path| self.file(node, &path).is_ok_and(|dir| dir.is_dir()))
        };
        match self.nodes().into_iter().find(has_pod) {
            Some(node) => Ok((node, Some(name.into()))),
            None => Err(self.process(name).err().unwrap_or_else(|| self.directory.unknown())),
        }
    }

    /// The path of this program on a machine: its own path if it exists there.
    pub fn program(&self, machine: &str) -> String {
        let own = std::env::current_exe().ok().and_then(|path| path.to_str().map(String::from));
        let exists = |path: &String| self.file(machine, path).is_ok_and(|file| file.is_file());
        own.filter(exists).unwrap_or_else(|| SELF.into())
    }

    /// The command that runs `words` on a machine.
    fn exec_command(&self, machine: &str, options: &[&str], words: &[String]) -> Command {
        let own = std::env::current_exe().unwrap_or_else(|_| PathBuf::from(SELF));
        let mut command = Command::new(own);
        command.args(["lab", "exec", "--name", &self.state.spec.name]).args(options);
        command.args([machine, "--"]).args(words);
        command
    }

    /// Starts a program on a machine, which ends with the machine. Its output goes to the log.
    pub(crate) fn start(&self, machine: &str, log: &str, words: &[String]) -> Result<Process> {
        let log = self.directory.log(log);
        let file = OpenOptions::new().create(true).append(true).open(&log);
        let file = file.map_err(FileError::at("open", &log))?;
        let failed = |output: String| Error::Exec {
            machine: machine.into(),
            doing: format!("start {}", words.first().map_or("", String::as_str)),
            output,
        };
        let mut command = self.exec_command(machine, &["--detached"], words);
        // Its own process group: Ctrl-C in the terminal must not end it.
        command.process_group(0).stdin(Stdio::null()).stderr(file);
        let output = command.output().map_err(|error| failed(error.to_string()))?;
        let pid = String::from_utf8_lossy(&output.stdout);
        let started = pid.trim().parse().ok().filter(|_| output.status.success());
        let started = started.and_then(|pid| Process::of(pid).ok());
        let last = log.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        started.ok_or_else(|| failed(self.directory.log_tail(&last)))
    }

    /// Runs `podwire … --json` on several machines in parallel. Returns their outputs in the same order.
    pub(crate) fn exec_json(&self, doing: &str, commands: &[(String, Vec<String>)]) -> Vec<Result<Value>> {
        let failed = |machine: &str, output: String| Error::Exec {
            machine: machine.into(),
            doing: doing.into(),
            output,
        };
        let start = |(machine, words): &(String, Vec<String>)| {
            let mut command = self.exec_command(machine, &[], words);
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
        };
        let running: Vec<_> = commands.iter().map(start).collect();
        let read = |(machine, child): (&String, std::io::Result<Child>)| {
            let output = child.and_then(Child::wait_with_output);
            let output = output.map_err(|error| failed(machine, error.to_string()))?;
            let errors = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
            match serde_json::from_slice(&output.stdout) {
                Ok(value) if output.status.success() => Ok(value),
                _ => Err(failed(machine, errors)),
            }
        };
        commands.iter().map(|(machine, _)| machine).zip(running).map(read).collect()
    }

    /// The path of this program on a machine, followed by these arguments.
    pub(crate) fn own_command(&self, machine: &str, words: &[&str]) -> Vec<String> {
        std::iter::once(self.program(machine)).chain(words.iter().map(ToString::to_string)).collect()
    }
}
