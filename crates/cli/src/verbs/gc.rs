//! `podwire cni gc`: what belongs to containers that are gone goes.

use std::path::Path;

use clap::Args;
use cni::{ContainerId, IfName};
use cni_plugin::ledger;
use cni_runtime::{Cache, Record};
use serde_json::json;

use super::addresses;
use super::place::Place;
use crate::{Answer, Failure};

pub(super) const EXAMPLES: &str = "Examples:
  podwire cni gc pods --dry-run
  podwire cni gc pods
  podwire cni gc pods --all --keep web-1/eth0

An attachment is kept if its network namespace still exists, if it is named by --keep, or if its record cannot
tell. Do not run it while a runtime that leaves no record beforehand, such as libcni, is starting a pod on the
same network: its plugins would take the pod's address for one that nobody has.";

#[derive(Debug, Args)]
pub(crate) struct Gc {
    /// The network, by the name in its config.
    network: String,
    /// Keep this attachment; may be repeated.
    #[arg(long, value_name = "CONTAINER/IFNAME", value_parser = attachment)]
    keep: Vec<(ContainerId, IfName)>,
    /// Remove all attachments that --keep does not name, even those whose namespace exists.
    #[arg(long)]
    all: bool,
    /// Only show which attachments would be removed.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    place: Place,
}

impl Gc {
    pub(crate) fn run(&self) -> Result<Answer, Failure> {
        let what = || format!("cannot sweep {}", self.network);
        let list = self.place.folder().find(&self.network).map_err(Failure::to(what()))?.list;
        let mut valid = self.keep.clone();
        if !self.all {
            valid.extend(alive(&self.place.cache(), &self.network));
        }
        if self.dry_run {
            let stale = stale(&self.place.cache(), &self.network, &valid);
            return Ok(report("would remove", "stale", &stale));
        }
        let sweep = self.place.runtime().gc(&list, &valid);
        let answer = report("removed", "removed", &sweep.removed);
        let done = cni_runtime::Error::all(sweep.errors);
        drop_tables();
        match done {
            Ok(()) => Ok(answer),
            Err(error) => Err(Failure::to(what())(error).after(answer)),
        }
    }
}

/// What may still be in use: attachments whose namespace exists, and those of which that cannot be told.
fn alive(cache: &Cache, network: &str) -> Vec<(ContainerId, IfName)> {
    let listing = cache.list();
    let used = |record: &&Record| record.netns.as_deref().is_none_or(exists);
    let known = listing.records.iter().filter(|record| record.network == network).filter(used);
    let known = known.map(|record| (record.container.clone(), record.ifname.clone()));
    // A torn record still has its file's name, which can be read in several ways: every one of them is kept.
    let names = listing
        .problems
        .iter()
        .filter_map(|problem| problem.path.file_name()?.to_str()?.strip_prefix(network)?.strip_prefix('-'));
    let torn = names.flat_map(|name| {
        name.match_indices('-').map(|(at, _)| (name[..at].to_owned(), name[at + 1..].to_owned()))
    });
    // Pods of runtimes that keep no records are in the plugins' own account.
    let accounts = ledger::of_whole_network(network);
    let entries = accounts.iter().flat_map(|account| &account.entries);
    let living = entries.filter(|entry| entry.result.is_some() && exists(Path::new(&entry.netns)));
    let living = living.map(|entry| (entry.container.clone(), entry.ifname.clone()));
    known
        .chain(torn)
        .chain(living)
        .filter_map(|(container, ifname)| {
            Some((ContainerId::parse(&container).ok()?, IfName::parse(&ifname).ok()?))
        })
        .collect()
}

/// Whether a namespace is there, or at least not known to be gone.
fn exists(path: &Path) -> bool {
    !matches!(kernel::Netns::find(path), Ok(None))
}

fn stale(cache: &Cache, network: &str, valid: &[(ContainerId, IfName)]) -> Vec<Record> {
    let kept = |record: &Record| {
        valid.iter().any(|(container, ifname)| **container == record.container && **ifname == record.ifname)
    };
    cache.list().records.into_iter().filter(|record| record.network == network && !kept(record)).collect()
}

fn report(verb: &str, key: &str, records: &[Record]) -> Answer {
    let line = |record: &Record| {
        let text = format!("{verb} {} {} {}", record.container, record.ifname, addresses(record).join(" "));
        format!("{}\n", text.trim_end())
    };
    let json = |record: &Record| json!({ "container": record.container, "ifname": record.ifname, "addresses": addresses(record) });
    let text = match records {
        [] => "nothing is stale\n".to_owned(),
        some => some.iter().map(line).collect(),
    };
    Answer::new(text, json!({ key: records.iter().map(json).collect::<Vec<_>>() }))
}

/// Tables of ours that hold nothing any more. Plugins leave them, because another pod may be about to use them.
fn drop_tables() {
    let dropped = kernel::Host::here().and_then(|mut host| kernel::firewall::drop_empty_tables(host.nft()?));
    // An empty table does no harm: it is not worth an error.
    let _ = dropped;
}

fn attachment(text: &str) -> Result<(ContainerId, IfName), String> {
    let (container, ifname) = text.split_once('/').ok_or("expected CONTAINER/IFNAME, like web-1/eth0")?;
    let container = ContainerId::parse(container).map_err(|error| error.to_string())?;
    Ok((container, IfName::parse(ifname).map_err(|error| error.to_string())?))
}
