//! `podwire cni gc`: removes the attachments of containers that no longer exist.
//!
//! Attachments are recorded twice: in the runtime's records and in the plugins' ledger. A runtime that is killed after
//! the plugins ran and before it wrote its record does not know the attachment, and the host port of the pod would stay
//! taken forever. So GC also removes attachments that only the ledger contains.

use clap::Args;
use podwire_cni_plugin::ledger::{self, LedgerFile};
use podwire_cni_runtime::{Listing, Record};
use podwire_cni_spec::{ContainerId, IfName};
use podwire_kernel::Netns;
use serde_json::json;

use super::records::addresses;
use super::runtime_flags::RuntimeFlags;
use super::unrecorded::Unrecorded;
use crate::failure::Failure;
use crate::output::Output;

pub(super) const EXAMPLES: &str = "Examples:
  podwire cni gc pods --dry-run
  podwire cni gc pods
  podwire cni gc pods --all --keep web-1/eth0 --keep web-2
  podwire cni gc podman --all $(podman ps -aq --no-trunc | sed 's/^/--keep /')

GC keeps an attachment if its network namespace exists, if --keep names it, or if its record names
no namespace. Do not run it while a runtime that records attachments afterwards, such as libcni,
starts a pod on the same network: GC would release the address of that pod.";

#[derive(Debug, Args)]
pub(crate) struct Gc {
    /// Name of the network, as in its config.
    network: String,
    /// Keep this attachment, or all attachments of this container; repeatable.
    #[arg(long, value_name = "CONTAINER[/IFNAME]", value_parser = attachment)]
    keep: Vec<(ContainerId, Option<IfName>)>,
    /// Remove all attachments that --keep does not name, also those whose namespace exists.
    #[arg(long)]
    all: bool,
    /// Only show which attachments GC would remove.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    flags: RuntimeFlags,
}

impl Gc {
    pub(crate) fn run(&self) -> Result<Output, Failure> {
        let what = || format!("cannot collect the garbage of {}", self.network);
        let list = self.flags.configs().find(&self.network).map_err(Failure::context(what()))?.list;
        // Records and ledger are read once, before anything is judged: attachments that appear later are not stale.
        let (listing, files) = (self.flags.cache().list(), ledger::read_network(&self.network));
        let mut valid = self.kept(&listing, &files);
        valid.extend(in_progress(&files));
        if !self.all {
            valid.extend(attached(&listing, &files, &self.network));
        }
        let unrecorded = if list.disable_gc {
            Vec::new()
        } else {
            Unrecorded::among(files, &listing.records, &self.network, &valid)
        };
        if self.dry_run {
            let records = listing.records.iter().filter(|_| !list.disable_gc);
            let stale = stale(records, &unrecorded, &self.network, &valid);
            return Ok(report("would remove", "stale", &stale));
        }
        let runtime = self.flags.runtime();
        let sweep = runtime.gc_of(&list, listing.records, &valid);
        let mut removed: Vec<Stale> = sweep.removed.iter().map(Stale::recorded).collect();
        let mut errors = sweep.errors;
        for one in unrecorded {
            match one.delete(runtime.deadline()) {
                Ok(()) if one.is_gone() => removed.push(Stale::unrecorded(&one)),
                // A new ADD of the same attachment ran meanwhile.
                Ok(()) => {}
                Err(error) => errors.push(podwire_cni_runtime::Error::Cni(error.to_cni())),
            }
        }
        let mut answer = report("removed", "removed", &removed);
        if removed.is_empty() && !errors.is_empty() {
            // Nothing was removed, but something is stale.
            answer.text.clear();
        }
        let done = podwire_cni_runtime::Error::all(errors);
        drop_tables();
        match done {
            Ok(()) => Ok(answer),
            Err(error) => Err(Failure::context(what())(error).with_output(answer)),
        }
    }

    /// The attachments that `--keep` names. A container without an interface stands for all its recorded interfaces.
    fn kept(&self, listing: &Listing, files: &[LedgerFile]) -> Vec<(ContainerId, IfName)> {
        let recorded = listing.records.iter().filter(|record| record.network == self.network);
        let mut known: Vec<_> = recorded.map(|record| (&record.container, &record.ifname)).collect();
        let entries = files.iter().flat_map(|file| &file.entries);
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

/// The attachments that an ADD is creating now.
fn in_progress(files: &[LedgerFile]) -> Vec<(ContainerId, IfName)> {
    let entries = files.iter().filter(|file| file.is_locked).flat_map(|file| &file.entries);
    entries.filter_map(|entry| names(&entry.container, &entry.ifname)).collect()
}

fn names(container: &str, ifname: &str) -> Option<(ContainerId, IfName)> {
    Some((ContainerId::parse(container).ok()?, IfName::parse(ifname).ok()?))
}

/// The attachments that may be in use: their namespace exists, or it is unknown whether it does.
fn attached(listing: &Listing, files: &[LedgerFile], network: &str) -> Vec<(ContainerId, IfName)> {
    let entries = || files.iter().flat_map(|file| &file.entries);
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
    // An unreadable record still has a file name, NETWORK-CONTAINER-IFNAME. Names may contain dashes: keep every reading.
    let suffixes = listing
        .problems
        .iter()
        .filter_map(|problem| problem.path.file_name()?.to_str()?.strip_prefix(network)?.strip_prefix('-'));
    let torn = suffixes.flat_map(|name| {
        name.match_indices('-').map(|(at, _)| (name[..at].to_owned(), name[at + 1..].to_owned()))
    });
    // The attachments of runtimes that keep no records are in the plugins' ledger.
    let in_ledger = entries().filter(|entry| entry.result.is_some() && is_there(entry.find_netns()));
    let in_ledger = in_ledger.map(|entry| (entry.container.clone(), entry.ifname.clone()));
    known.chain(torn).chain(in_ledger).filter_map(|(container, ifname)| names(&container, &ifname)).collect()
}

/// Whether a namespace exists. If the kernel cannot tell, it counts as existing.
fn is_there(found: podwire_kernel::Result<Option<Netns>>) -> bool {
    !matches!(found, Ok(None))
}

fn stale<'r>(
    records: impl Iterator<Item = &'r Record>,
    unrecorded: &[Unrecorded],
    network: &str,
    valid: &[(ContainerId, IfName)],
) -> Vec<Stale> {
    let kept = |record: &Record| {
        valid.iter().any(|(container, ifname)| **container == record.container && **ifname == record.ifname)
    };
    let recorded = records.filter(|record| record.network == network && !kept(record));
    recorded.map(Stale::recorded).chain(unrecorded.iter().map(Stale::unrecorded)).collect()
}

/// An attachment to remove.
struct Stale {
    container: String,
    ifname: String,
    addresses: Vec<String>,
}

impl Stale {
    fn recorded(record: &Record) -> Stale {
        let addresses = addresses(record);
        Stale { container: record.container.clone(), ifname: record.ifname.clone(), addresses }
    }

    fn unrecorded(one: &Unrecorded) -> Stale {
        Stale { container: one.container.clone(), ifname: one.ifname.clone(), addresses: Vec::new() }
    }
}

fn report(verb: &str, key: &str, all: &[Stale]) -> Output {
    let line = |one: &Stale| {
        let text = format!("{verb} {} {} {}", one.container, one.ifname, one.addresses.join(" "));
        format!("{}\n", text.trim_end())
    };
    let json =
        |one: &Stale| json!({ "container": one.container, "ifname": one.ifname, "addresses": one.addresses });
    let text = match all {
        [] => "nothing is stale\n".to_owned(),
        some => some.iter().map(line).collect(),
    };
    Output::new(text, json!({ key: all.iter().map(json).collect::<Vec<_>>() }))
}

/// Removes Podwire's empty nftables tables. Plugins leave them, because another pod may be about to use them.
fn drop_tables() {
    let dropped = podwire_kernel::firewall::drop_unneeded_tables();
    // An empty table does no harm, so a failure is ignored.
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
