//! `podwire pod exec`: a command in a pod's namespaces.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus};
use std::time::Duration;

use clap::Args;
use podwire_netlink::sys;
use podwire_sandbox::{PodName, Pods};

use super::namespace_flag::NamespaceFlag;
use crate::cni::RuntimeFlags;
use crate::failure::Failure;

pub(super) const EXAMPLES: &str = "Examples:
  podwire pod exec web -- ip address
  podwire pod exec web -- cat /etc/resolv.conf
  podwire pod exec web                         a shell

The command has the network, host name, resolv.conf and processes of the pod, and the files of the
node. It is killed when the pod stops. The exit status is that of the command.";

#[derive(Debug, Args)]
pub(crate) struct Exec {
    /// Pod: NAME or NAMESPACE/NAME.
    #[arg(value_name = "POD")]
    pod: String,
    #[command(flatten)]
    namespace: NamespaceFlag,
    /// Command and arguments [default: $SHELL].
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
    #[command(flatten)]
    flags: RuntimeFlags,
}

/// The signals that end a program. They are forwarded to the command.
const SIGNALS: [i32; 4] = [1, 2, 3, 15]; // HUP, INT, QUIT, TERM: asm-generic/signal.h

const SI_KERNEL: i32 = 0x80; // asm-generic/siginfo.h

impl Exec {
    pub(crate) fn run(&self) -> Result<ExitCode, Failure> {
        let name = self.namespace.pod(&self.pod)?;
        let dir = std::env::current_dir();
        let pods = Pods::new(self.flags.runtime());
        pods.enter(&name).map_err(Failure::context(format!("cannot run a command in pod {name}")))?;
        // The pod sees the files of the node, so the directory usually exists there; otherwise it is the root.
        let _ = dir.and_then(std::env::set_current_dir);
        let shell = || vec![std::env::var("SHELL").unwrap_or_else(|_| "/bin/sh".into())];
        let words = if self.command.is_empty() { shell() } else { self.command.clone() };
        let failed = |error: io::Error| failure(&name, &words[0], &error);
        let status = run_to_end(&words).map_err(failed)?;
        Ok(ExitCode::from(exit_code(status)))
    }
}

fn failure(pod: &PodName, program: &str, error: &io::Error) -> Failure {
    let error = podwire_cni_spec::Error::new(podwire_cni_spec::code::IO, error.to_string());
    Failure::new(format!("cannot run {program} in pod {pod}"), error)
}

/// Runs a program to its end, and forwards the signals that would end this program.
pub(crate) fn run_to_end(words: &[String]) -> io::Result<ExitStatus> {
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
            // struct signalfd_siginfo of linux/signalfd.h: signo, errno, code.
            let mut info = [0; 128];
            io::Read::read_exact(&mut signals, &mut info)?;
            let field = |at: usize| i32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
            // The terminal sends its signals to the command, too.
            if field(8) != SI_KERNEL {
                let _ = sys::signal_process(process.as_fd(), field(0));
            }
        }
    }
}

/// The exit code of a program as shells report it: 128 plus the signal if one killed it.
pub(crate) fn exit_code(status: ExitStatus) -> u8 {
    let number = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(number).unwrap_or(1)
}
