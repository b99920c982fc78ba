//! `podwire cni …`: the verbs of a container runtime, by hand.

mod attach;
mod audit;
mod check;
mod gc;
mod list;
mod namespace;
mod place;
mod reload;
mod status;
mod target;
mod unrecorded;
mod watch;

use clap::Subcommand;
use podwire_cni_runtime::Record;

pub(crate) use namespace::{absolute, container_id};
pub(crate) use place::{split, Place};

use crate::{Answer, Failure};

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Attach a container to a network.
    #[command(after_help = attach::ADD_EXAMPLES)]
    Add(attach::Add),
    /// Detach a container from a network.
    #[command(after_help = attach::DEL_EXAMPLES)]
    Del(attach::Del),
    /// Check that a container's attachment is as it was made; with --repair put back what is not.
    #[command(after_help = check::EXAMPLES)]
    Check(check::Check),
    /// Remove what belongs to containers that are gone.
    #[command(after_help = gc::EXAMPLES)]
    Gc(gc::Gc),
    /// Ask networks whether another container could be attached.
    #[command(after_help = status::EXAMPLES)]
    Status(status::Status),
    /// Compare ledger, records, address pools and kernel on this node; with --fix mend what differs.
    #[command(after_help = audit::EXAMPLES)]
    Audit(audit::Audit),
    /// Put firewall rules back after somebody flushed them.
    #[command(after_help = reload::EXAMPLES)]
    Reload(reload::Reload),
    /// Show networks and attachments, and what is wrong with them.
    #[command(after_help = list::EXAMPLES)]
    List(list::List),
}

impl Verb {
    pub(crate) fn run(&self, json: bool) -> Result<Answer, Failure> {
        match self {
            Verb::Add(verb) => verb.run(),
            Verb::Del(verb) => verb.run(),
            Verb::Check(verb) => verb.run(),
            Verb::Gc(verb) => verb.run(),
            Verb::Status(verb) if verb.watch => watch::run(&verb.place, json),
            Verb::Status(verb) => verb.run(),
            Verb::Audit(verb) => verb.run(),
            Verb::Reload(verb) => verb.run(),
            Verb::List(verb) => verb.run(),
        }
    }
}

/// The addresses that an attachment got.
fn addresses(record: &Record) -> Vec<String> {
    let ips = record.attachment().map(|attachment| attachment.ips).unwrap_or_default();
    ips.iter().map(|ip| ip.address.to_string()).collect()
}
