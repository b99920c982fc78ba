//! `podwire pod exec`: a command in a pod's namespaces.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus};
use std::time::Duration;

use clap::Args;
use podwire_netlink::sys;
use podwire_sandbox::{PodName, Pods};

use super::Namespace;
use crate::verbs::Place;
use crate::Failure;

pub(super) const EXAMPLES: &str = "Examples:
  podwire pod exec web -- ip address
  podwire pod exec web -- cat /etc/resolv.conf
  podwire pod exec web                         a shell

The command has the pod's network, host name, resolv.conf and processes, and the node's files. It ends with the
pod. podwire ends with the command's exit status.";

#[derive(Debug, Args)]
pub(crate) struct Exec {
    /// The pod: NAME or NAMESPACE/NAME.
    #[arg(value_name = "POD")]
    pod: String,
    #[command(flatten)]
    namespace: Namespace,
    /// The command and its arguments [default: $SHELL].
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
    #[command(flatten)]
    place: Place,
}

/// Those that somebody sends to end a program; it is the command that should.
const SIGNALS: [i32; 4] = [1, 2, 3, 15]; // HUP, INT, QUIT, TERM: asm-generic/signal.h

const SI_KERNEL: i32 = 0x80; // asm-generic/siginfo.h

impl Exec {
    pub(crate) fn run(&self) -> Result<ExitCode, Failure> {
        let name = self.namespace.pod(&self.pod)?;
        let folder = std::env::current_dir();
        let pods = Pods::new(self.place.runtime());
        pods.enter(&name).map_err(Failure::to(format!("cannot run a command in pod {name}")))?;
        // The pod has the node's files, so mostly this folder too; else it is the root.
        let _ = folder.and_then(std::env::set_current_dir);
        let shell = || vec![std::env::var("SHELL").unwrap_or_else(|_| "/bin/sh".into())];
        let words = if self.command.is_empty() { shell() } else { self.command.clone() };
        let failed = |error: io::Error| failure(&name, &words[0], &error);
        let status = converse(&words).map_err(failed)?;
        Ok(ExitCode::from(code(status)))
    }
}

fn failure(pod: &PodName, program: &str, error: &io::Error) -> Failure {
    let error = podwire_cni_spec::Error::new(podwire_cni_spec::code::IO, error.to_string());
    Failure::new(format!("cannot run {program} in pod {pod}"), error)
}

/// Runs a program to its end. Signals that would end us go to it.
pub(crate) fn converse(words: &[String]) -> io::Result<ExitStatus> {
    let signals = sys::open_signalfd(&SIGNALS)?;
    let mut child = sys::spawn_unblocked(Command::new(&words[0]).args(&words[1..]))?;
    let process = sys::open_pidfd(child.id())?;
    let mut signals = std::fs::File::from(signals);
    loop {
        let ready = sys::readable(&[process.as_fd(), signals.as_fd()], Duration::from_secs(3600))?;
        if ready[0] {
            return child.wait();
        }
        if ready[1] {
            // struct signalfd_siginfo of linux/signalfd.h: the number, an error, and who sent it.
            let mut told = [0; 128];
            io::Read::read_exact(&mut signals, &mut told)?;
            let word = |at: usize| i32::from_ne_bytes([told[at], told[at + 1], told[at + 2], told[at + 3]]);
            // What the terminal sends, the command gets from there, too.
            if word(8) != SI_KERNEL {
                let _ = sys::signal_process(process.as_fd(), word(0));
            }
        }
    }
}

/// As shells tell it.
pub(crate) fn code(status: ExitStatus) -> u8 {
    let number = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(number).unwrap_or(1)
}
