//! `podwire lab exec`: runs a command on a node, on the router, or in a pod.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

use clap::Args;
use podwire_lab::Lab;

use super::name_flag::NameFlag;
use crate::failure::Failure;
use crate::pod::{exit_code, run_to_end};

pub(super) const EXAMPLES: &str = "Examples:
  podwire lab exec n1 -- ip -d link show flannel.1
  podwire lab exec n1 -- podwire pod list
  podwire lab exec n2-pod1 -- ip address
  podwire lab exec router -- tcpdump -ni lan1
  podwire lab exec n1                              a shell

The command has the network, processes and host name of the node or pod, and the files of this
machine except /run, /var/lib and /etc/cni. The exit status is that of the command.";

#[derive(Debug, Args)]
pub(crate) struct Exec {
    #[command(flatten)]
    lab: NameFlag,
    /// Node (n1, n2…), router or pod.
    #[arg(value_name = "NODE|POD")]
    target: String,
    /// Do not wait for the command, and print its process id. The command ends with the node.
    #[arg(long, hide = true)]
    detached: bool,
    /// Command and arguments [default: $SHELL].
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Exec {
    pub(crate) fn run(&self) -> Result<ExitCode, Failure> {
        let cannot = || format!("cannot run a command on {}", self.target);
        let failed = |error: io::Error| {
            Failure::new(
                cannot(),
                podwire_cni_spec::Error::new(podwire_cni_spec::code::IO, error.to_string()),
            )
        };
        let lab = Lab::find(&self.lab.name).map_err(Failure::context(cannot()))?;
        let (machine, pod) = lab.find_target(&self.target).map_err(Failure::context(cannot()))?;
        let program = lab.program(&machine);
        let dir = std::env::current_dir();
        lab.enter(&machine).map_err(Failure::context(cannot()))?;
        // A node sees this machine's files, so the directory usually exists there; otherwise it is the root.
        let _ = dir.and_then(std::env::set_current_dir);
        let shell = || vec![std::env::var("SHELL").unwrap_or_else(|_| "/bin/sh".into())];
        let command = if self.command.is_empty() { shell() } else { self.command.clone() };
        let words = match pod {
            None => command,
            Some(pod) => {
                let to_pod = [program, "pod".into(), "exec".into(), pod, "--".into()];
                to_pod.into_iter().chain(command).collect()
            }
        };
        if self.detached {
            let mut detached = Command::new(&words[0]);
            detached.args(&words[1..]).process_group(0).stdin(Stdio::null()).stdout(Stdio::null());
            println!("{}", detached.spawn().map_err(failed)?.id());
            return Ok(ExitCode::SUCCESS);
        }
        Ok(ExitCode::from(exit_code(run_to_end(&words).map_err(failed)?)))
    }
}
