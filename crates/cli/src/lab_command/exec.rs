//! `podwire lab exec`: a command on a machine of the lab, or in a pod.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

use clap::Args;
use podwire_lab::Lab;

use crate::pods::{code, converse};
use crate::Failure;

pub(super) const EXAMPLES: &str = "Examples:
  podwire lab exec n1 -- ip -d link show flannel.1
  podwire lab exec n1 -- podwire pod list
  podwire lab exec n2-pod1 -- ip address
  podwire lab exec router -- tcpdump -ni lan1
  podwire lab exec n1                              a shell

The command has the network, the processes and the host name of the node or pod, and the machine's files, but for /run,
/var/lib and /etc/cni. podwire ends with the command's exit status.";

#[derive(Debug, Args)]
pub(crate) struct Exec {
    #[command(flatten)]
    lab: super::Named,
    /// Where: n1, n2…, router, or a pod.
    #[arg(value_name = "NODE|POD")]
    place: String,
    /// Do not wait for the command; print the number of its process. It runs as long as the node.
    #[arg(long, hide = true)]
    detached: bool,
    /// The command and its arguments [default: $SHELL].
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Exec {
    pub(super) fn run(&self) -> Result<ExitCode, Failure> {
        let cannot = || format!("cannot run a command on {}", self.place);
        let failed = |error: io::Error| {
            Failure::new(
                cannot(),
                podwire_cni_spec::Error::new(podwire_cni_spec::code::IO, error.to_string()),
            )
        };
        let lab = Lab::find(&self.lab.name).map_err(Failure::to(cannot()))?;
        let (machine, pod) = lab.find_target(&self.place).map_err(Failure::to(cannot()))?;
        let program = lab.program(&machine);
        let folder = std::env::current_dir();
        lab.enter(&machine).map_err(Failure::to(cannot()))?;
        // The machine has this machine's files, so mostly this folder too; else it is the root.
        let _ = folder.and_then(std::env::set_current_dir);
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
        Ok(ExitCode::from(code(converse(&words).map_err(failed)?)))
    }
}
