//! `podwire pod …`: pods without containers, by hand.

mod exec;
mod list;
mod run;
mod several;
mod status;
mod stop;

use clap::{Args, Subcommand};
use podwire_sandbox::PodName;

use crate::{Answer, Failure};

pub(crate) use exec::{code, converse};

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run pods: namespaces, a process that holds them, networks.
    #[command(after_help = run::EXAMPLES)]
    Run(Box<run::Run>),
    /// Take pods' networks away and end their processes.
    #[command(after_help = stop::STOP_EXAMPLES)]
    Stop(stop::Stop),
    /// Stop pods and forget them.
    #[command(after_help = stop::RM_EXAMPLES)]
    Rm(stop::Rm),
    /// Show what a pod does, or whether pods can be run.
    #[command(after_help = status::EXAMPLES)]
    Status(status::Status),
    /// Show all pods.
    #[command(after_help = list::EXAMPLES)]
    List(list::List),
    /// Run a command in a pod.
    #[command(after_help = exec::EXAMPLES)]
    Exec(exec::Exec),
}

impl Verb {
    pub(crate) fn run(&self) -> Result<Answer, Failure> {
        match self {
            Verb::Run(verb) => verb.run(),
            Verb::Stop(verb) => verb.run(),
            Verb::Rm(verb) => verb.run(),
            Verb::Status(verb) => verb.run(),
            Verb::List(verb) => verb.run(),
            Verb::Exec(_) => unreachable!("it answers with a status of its own"),
        }
    }
}

/// Which Kubernetes namespace is meant.
#[derive(Debug, Args)]
pub(crate) struct Namespace {
    /// The pod's Kubernetes namespace, where a name has none of its own (NAMESPACE/NAME).
    #[arg(long, short, value_name = "NAMESPACE", default_value = "default")]
    namespace: String,
}

impl Namespace {
    pub(crate) fn pod(&self, name: &str) -> Result<PodName, Failure> {
        PodName::parse(name, &self.namespace).map_err(Failure::to(format!("{name:?} is no pod")))
    }
}
