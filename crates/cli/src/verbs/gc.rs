//! `podwire cni gc`: what belongs to containers that are gone goes.
//!
//! Two sides know of attachments: the runtime's records, and the plugins' own ledger. A runtime that is killed between
//! the plugins' work and its record knows nothing of the pod afterwards, while the namespace may still be there: the pod's
//! host port would stay taken for ever. What the ledger alone knows is swept with the rest.

use clap::Args;
use podwire_cni_plugin::ledger::{self, Account};
use podwire_cni_runtime::{Listing, Record};
use podwire_cni_spec::{ContainerId, IfName};
use podwire_kernel::Netns;
use serde_json::json;

use super::addresses;
use super::place::Place;
use super::unrecorded::Unrecorded;
use crate::{Answer, Failure};

pub(super) const EXAMPLES: &str = "Examples:
  podwire cni gc pods --dry-run
  podwire cni gc pods
  podwire cni gc pods --all --keep web-1/eth0 --keep web-2
  podwire cni gc podman --all $(podman ps -aq --no-trunc | sed 's/^/--keep /')

An attachment is kept if its network namespace still exists, if it is named by --keep, or if its record cannot
tell. Do not run it while a runtime that leaves no record beforehand, such as libcni, is starting a pod on the
same network: its plugins would take the pod's address for one that nobody has.";

#[derive(Debug, Args)]
pub(crate) struct Gc {
    /// The network, by the name in its config.
    network: String,
    /// Keep this attachment, or all of this container; may be repeated.
    #[arg(long, value_name = "CONTAINER[/IFNAME]", value_parser = attachment)]
    keep: Vec<(ContainerId, Option<IfName>)>,
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
        // All that is judged was looked at once: what comes later is not stale.
        let (listing, accounts) = (self.place.cache().list(), ledger::of_whole_network(&self.network));
        let mut valid = self.kept(&listing, &accounts);
        valid.extend(at_work(&accounts));
        if !self.all {
            valid.extend(alive(&listing, &accounts, &self.network));
        }
        let unrecorded = match list.disable_gc {
            true => Vec::new(),
            false => Unrecorded::among(accounts, &listing.records, &self.network, &valid),
        };
        if self.dry_run {
            let records = listing.records.iter().filter(|_| !list.disable_gc);
            let stale = stale(records, &unrecorded, &self.network, &valid);
            return Ok(report("would remove", "stale", &stale));
        }
        let runtime = self.place.runtime();
        let sweep = runtime.gc_of(&list, listing.records, &valid);
        let mut removed: Vec<Swept> = sweep.removed.iter().map(Swept::recorded).collect();
        let mut errors = sweep.errors;
        for one in unrecorded {
            match one.take_back(runtime.deadline()) {
                Ok(()) if one.is_gone() => removed.push(Swept::unrecorded(&one)),
                // It came back meanwhile.
                Ok(()) => {}
                Err(error) => errors.push(podwire_cni_runtime::Error::Cni(error.to_cni())),
            }
        }
        let mut answer = report("removed", "removed", &removed);
        if removed.is_empty() && !errors.is_empty() {
            // What is stale is still there.
            answer.text.clear();
        }
        let done = podwire_cni_runtime::Error::all(errors);
        drop_tables();
        match done {
            Ok(()) => Ok(answer),
            Err(error) => Err(Failure::to(what())(error).after(answer)),
        }
    }

    /// Whom `--keep` names. A container alone stands for each of its interfaces that anybody has written down.
    fn kept(&self, listing: &Listing, accounts: &[Account]) -> Vec<(ContainerId, IfName)> {
        let recorded = listing.records.iter().filter(|record| record.network == self.network);
        let mut known: Vec<_> = recorded.map(|record| (&record.container, &record.ifname)).collect();
        let entries = accounts.iter().flat_map(|account| &account.entries);
        known.extend(entries.map(|entry| (&entry.container, &entry.ifname)));
        let interfaces = |container: &ContainerId| -> Vec<IfName> {
            let own = known.iter().filter(|(other, _)| **other == **container);
            own.filter_map(|(_, ifname)| IfName::parse(ifname).ok()).collect()
        };
        let each = |(container, ifname): &(ContainerId, Option<IfName>)| {
            let all = ifname.clone().map_or_else(|| interfaces(container), |one| vec![one]);
            all.into_iter().map(|ifname| (container.clone(), ifname)).collect::<Vec<_>>()
        };
        self.keep.iter().flat_map(each).collect()
    }
}

/// Attachments that are being made right now: somebody is about to use them.
fn at_work(accounts: &[Account]) -> Vec<(ContainerId, IfName)> {
    let entries = accounts.iter().filter(|account| account.busy).flat_map(|account| &account.entries);
    entries.filter_map(|entry| names(&entry.container, &entry.ifname)).collect()
}

fn names(container: &str, ifname: &str) -> Option<(ContainerId, IfName)> {
    Some((ContainerId::parse(container).ok()?, IfName::parse(ifname).ok()?))
}

/// What may still be in use: attachments whose namespace exists, and those of which that cannot be told.
fn alive(listing: &Listing, accounts: &[Account], network: &str) -> Vec<(ContainerId, IfName)> {
    let entries = || accounts.iter().flat_map(|account| &account.entries);
    let own = |record: &Record| {
        let names = (record.container.clone(), record.ifname.clone());
        entries().filter(move |entry| (&entry.container, &entry.ifname) == (&names.0, &names.1))
    };
    let used = |record: &&Record| {
        let netns = record.netns.as_deref();
        netns.is_none_or(|path| is_there(ledger::find_recorded_netns(path, own(record))))
    };
    let known = listing.records.iter().filter(|record| record.network == network).filter(used);
    let known = known.map(|record| (record.container.clone(), record.ifname.clone()));
    // A torn record still has its file's name, which can be read in several ways: every one of them is kept.
    let files = listing
        .problems
        .iter()
        .filter_map(|problem| problem.path.file_name()?.to_str()?.strip_prefix(network)?.strip_prefix('-'));
    let torn = files.flat_map(|name| {
        name.match_indices('-').map(|(at, _)| (name[..at].to_owned(), name[at + 1..].to_owned()))
    });
    // Pods of runtimes that keep no records are in the plugins' own account.
    let living = entries().filter(|entry| entry.result.is_some() && is_there(entry.find_netns()));
    let living = living.map(|entry| (entry.container.clone(), entry.ifname.clone()));
    known.chain(torn).chain(living).filter_map(|(container, ifname)| names(&container, &ifname)).collect()
}

/// Whether a namespace is there, or at least not known to be gone.
fn is_there(found: podwire_kernel::Result<Option<Netns>>) -> bool {
    !matches!(found, Ok(None))
}

fn stale<'r>(
    records: impl Iterator<Item = &'r Record>,
    unrecorded: &[Unrecorded],
    network: &str,
    valid: &[(ContainerId, IfName)],
) -> Vec<Swept> {
    let kept = |record: &Record| {
        valid.iter().any(|(container, ifname)| **container == record.container && **ifname == record.ifname)
    };
    let recorded = records.filter(|record| record.network == network && !kept(record));
    recorded.map(Swept::recorded).chain(unrecorded.iter().map(Swept::unrecorded)).collect()
}

/// An attachment that is not kept.
struct Swept {
    container: String,
    ifname: String,
    addresses: Vec<String>,
}

impl Swept {
    fn recorded(record: &Record) -> Swept {
        let addresses = addresses(record);
        Swept { container: record.container.clone(), ifname: record.ifname.clone(), addresses }
    }

    fn unrecorded(one: &Unrecorded) -> Swept {
        Swept { container: one.container.clone(), ifname: one.ifname.clone(), addresses: Vec::new() }
    }
}

fn report(verb: &str, key: &str, swept: &[Swept]) -> Answer {
    let line = |one: &Swept| {
        let text = format!("{verb} {} {} {}", one.container, one.ifname, one.addresses.join(" "));
        format!("{}\n", text.trim_end())
    };
    let json =
        |one: &Swept| json!({ "container": one.container, "ifname": one.ifname, "addresses": one.addresses });
    let text = match swept {
        [] => "nothing is stale\n".to_owned(),
        some => some.iter().map(line).collect(),
    };
    Answer::new(text, json!({ key: swept.iter().map(json).collect::<Vec<_>>() }))
}

/// Tables of ours that hold nothing any more. Plugins leave them, because another pod may be about to use them.
fn drop_tables() {
    let dropped = podwire_kernel::firewall::drop_unneeded_tables();
    // An empty table does no harm: it is not worth an error.
    let _ = dropped;
}

fn attachment(text: &str) -> Result<(ContainerId, Option<IfName>), String> {
    let (container, ifname) = match text.split_once('/') {
        Some((container, ifname)) => {
            (container, Some(IfName::parse(ifname).map_err(|error| error.to_string())?))
        }
        None => (text, None),
    };
    Ok((ContainerId::parse(container).map_err(|error| error.to_string())?, ifname))
}
