//! `podwire cni …`: the operations of a container runtime, from the command line.

mod attach;
mod audit;
mod check;
mod gc;
mod lint;
mod list;
mod namespace;
pub(crate) mod records;
mod reload;
mod runtime_flags;
mod status;
mod target;
mod unrecorded;
mod warnings;
mod watch;

use clap::Subcommand;

pub(crate) use namespace::{absolute, container_id};
pub(crate) use runtime_flags::{split, RuntimeFlags};
pub(crate) use warnings::problem_json;

use crate::failure::Failure;
use crate::output::Output;

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Attach a container to a network.
    #[command(after_help = attach::ADD_EXAMPLES)]
    Add(attach::Add),
    /// Detach a container from a network.
    #[command(after_help = attach::DEL_EXAMPLES)]
    Del(attach::Del),
    /// Compare an attachment with the result of its ADD; with --repair restore it.
    #[command(after_help = check::EXAMPLES)]
    Check(check::Check),
    /// Remove the attachments of containers that no longer exist.
    #[command(after_help = gc::EXAMPLES)]
    Gc(gc::Gc),
    /// Show whether the networks can take another container.
    #[command(after_help = status::EXAMPLES)]
    Status(status::Status),
    /// Compare ledger, records, address pools and kernel on this node; with --fix repair differences.
    #[command(after_help = audit::EXAMPLES)]
    Audit(audit::Audit),
    /// Restore the firewall rules of all pods after a flush.
    #[command(after_help = reload::EXAMPLES)]
    Reload(reload::Reload),
    /// Find mistakes in network configs: keys that no plugin reads, networks that overlap.
    #[command(after_help = lint::EXAMPLES)]
    Lint(lint::Lint),
    /// Show networks and attachments, and their problems.
    #[command(after_help = list::EXAMPLES)]
    List(list::List),
}

impl Verb {
    /// Whether it needs no rights of root: config files may belong to any user.
    pub(crate) fn only_reads_files(&self) -> bool {
        matches!(self, Verb::Lint(_))
    }

    pub(crate) fn run(&self, json: bool) -> Result<Output, Failure> {
        match self {
            Verb::Add(verb) => verb.run(),
            Verb::Del(verb) => verb.run(),
            Verb::Check(verb) => verb.run(),
            Verb::Gc(verb) => verb.run(),
            Verb::Status(verb) if verb.watch => watch::run(&verb.flags, json),
            Verb::Status(verb) => verb.run(),
            Verb::Audit(verb) => verb.run(),
            Verb::Reload(verb) => verb.run(),
            Verb::Lint(verb) => verb.run(),
            Verb::List(verb) => verb.run(),
        }
    }
}
