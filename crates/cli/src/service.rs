//! `podwire service …`: shows the Services of this node as they are in the kernel, and explains what packets to them meet.
//! The kernel has them also while no agent runs. With a source of objects, the reasons of the agent's decisions are shown.

mod client;
mod endpoints;
mod explain;
mod list;
mod node_services;
mod service_name;
mod show;
mod source_flags;
mod target;
mod view;

use clap::Subcommand;

pub(crate) use endpoints::{of_cluster_ips, ServiceEndpoint};

use crate::failure::Failure;
use crate::output::Output;

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// List the Services that this node serves.
    #[command(after_help = list::EXAMPLES)]
    List(list::List),
    /// Show the addresses of a Service and their endpoints.
    #[command(after_help = show::EXAMPLES)]
    Show(show::Show),
    /// Explain what happens to a packet to a Service.
    #[command(after_help = explain::EXAMPLES)]
    Explain(explain::Explain),
}

impl Verb {
    pub(crate) fn run(&self) -> Result<Output, Failure> {
        match self {
            Verb::List(verb) => verb.run(),
            Verb::Show(verb) => verb.run(),
            Verb::Explain(verb) => verb.run(),
        }
    }
}
