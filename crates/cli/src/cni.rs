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

use std::cell::LazyCell;

use clap::Subcommand;
use podwire_cni_runtime::Cache;

pub(crate) use namespace::{absolute, container_id};
pub(crate) use runtime_flags::{split, RuntimeFlags};
pub(crate) use warnings::problem_json;

use crate::container_ids;
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
        if json {
            return self.answer(true);
        }
        // The list grows with the node, so it is read only for a text with a long id.
        let read = || self.cache().map(|cache| cache.list().records).unwrap_or_default();
        let records = LazyCell::new(read);
        if matches!(self, Verb::Del(verb) if container_ids::has_long(verb.target.name())) {
            // Before DEL removes the record.
            LazyCell::force(&records);
        }
        let named = |text: &str| {
            if container_ids::has_long(text) {
                records::with_names(text, &records)
            } else {
                text.to_owned()
            }
        };
        match self.answer(false) {
            Ok(output) => Ok(Output { text: named(&output.text), ..output }),
            Err(failure) => Err(failure.map_texts(named)),
        }
    }

    /// The records of its attachments.
    fn cache(&self) -> Option<Cache> {
        let flags = match self {
            Verb::Add(verb) => &verb.flags,
            Verb::Del(verb) => &verb.flags,
            Verb::Check(verb) => &verb.flags,
            Verb::Gc(verb) => &verb.flags,
            Verb::Status(verb) => &verb.flags,
            Verb::Audit(verb) => &verb.flags,
            Verb::List(verb) => &verb.flags,
            Verb::Reload(_) | Verb::Lint(_) => return None,
        };
        Some(flags.cache())
    }

    fn answer(&self, json: bool) -> Result<Output, Failure> {
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
