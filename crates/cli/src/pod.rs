//! `podwire pod …`: pods without containers, from the command line.

mod age;
mod batch;
mod exec;
mod list;
mod namespace_flag;
mod run;
mod status;
mod stop;

use clap::Subcommand;

use crate::failure::Failure;
use crate::output::Output;

pub(crate) use exec::{exit_code, run_to_end};

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run pods: namespaces, a process that holds them, and networks.
    #[command(after_help = run::EXAMPLES)]
    Run(Box<run::Run>),
    /// Detach pods from their networks and end their processes.
    #[command(after_help = stop::STOP_EXAMPLES)]
    Stop(stop::Stop),
    /// Stop pods and delete their records.
    #[command(after_help = stop::RM_EXAMPLES)]
    Rm(stop::Rm),
    /// Show the status of a pod, or whether the network is ready for pods.
    #[command(after_help = status::EXAMPLES)]
    Status(status::Status),
    /// List all pods.
    #[command(after_help = list::EXAMPLES)]
    List(list::List),
    /// Run a command in a pod.
    #[command(after_help = exec::EXAMPLES)]
    Exec(exec::Exec),
}

impl Verb {
    pub(crate) fn run(&self) -> Result<Output, Failure> {
        match self {
            Verb::Run(verb) => verb.run(),
            Verb::Stop(verb) => verb.run(),
            Verb::Rm(verb) => verb.run(),
            Verb::Status(verb) => verb.run(),
            Verb::List(verb) => verb.run(),
            Verb::Exec(_) => unreachable!("main runs exec, which has an exit status of its own"),
        }
    }
}
