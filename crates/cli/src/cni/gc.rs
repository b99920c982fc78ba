//! `podwire cni gc`: removes the attachments of containers that no longer exist.
//!
//! Attachments are recorded twice: by the runtime in its cache, and by Podwire's plugins in their ledger. Podwire's
//! runtime writes its record before ADD. Go runtimes (libcni) write theirs after ADD: one that is killed in between
//! leaves an attachment without a record, and the host port of the pod would stay taken. So GC also removes attachments
//! that are only in the ledger, if their namespace is gone or their ADD did not finish.

use clap::Args;
use podwire_cni_plugin::ledger::{self, LedgerFile};
use podwire_cni_runtime::{Listing, Record};
use podwire_cni_spec::{ContainerId, IfName};
use podwire_kernel::Netns;
use serde_json::json;

use super::records::{addresses, label};
use super::runtime_flags::RuntimeFlags;
use super::unrecorded::Unrecorded;
use crate::container_ids::short;
use crate::failure::Failure;
use crate::output::Output;

pub(super) const EXAMPLES: &str = "Examples:
  podwire cni gc pods --dry-run
  podwire cni gc pods
  podwire cni gc pods --all --keep web-1/eth0 --keep web-2
  podwire cni gc pods --all $(podman ps -aq --no-trunc | sed 's/^/--keep /')

GC keeps an attachment if
  - --keep names it or its container,
  - an ADD of one of Podwire's plugins is in progress for it,
  - its network namespace exists, or GC cannot find out whether it exists,
  - its record names no network namespace, or
  - its record cannot be read.
With --all, GC keeps only the first two. An ADD that was killed and left no record is removed even
if its namespace exists.

Do not run GC while a runtime that writes its cache after ADD (libcni: containerd, CRI-O, podman)
attaches a pod to the same network. Until the cache is written, GC may delete the new pod's
interface and release its address.";

#[derive(Debug, Args)]
pub(crate) struct Gc {
    /// Name of the network, as in its config.
    network: String,
    /// Keep this attachment, or every recorded attachment of this container; repeatable.
    #[arg(long, value_name = "CONTAINER[/IFNAME]", value_parser = parse_keep)]
    keep: Vec<(ContainerId, Option<IfName>)>,
    /// Remove all attachments except those given with --keep and those that an ADD is creating.
    #[arg(long)]
    all: bool,
    /// Only show which recorded attachments would be removed, not what the plugins' own GC would find.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    pub(super) flags: RuntimeFlags,
}

impl Gc {
    pub(crate) fn run(&self) -> Result<Output, Failure> {
        let context = || format!("cannot collect the garbage of {}", self.network);
        let list = self.flags.configs().find(&self.network).map_err(Failure::context(context()))?.list;
        // Later attachments are not in these lists, and no DEL below concerns them. `gc_of` reads the records again
        // before the plugins' GC, which may still remove an attachment whose record is not written yet; see EXAMPLES.
        let (cache, files) = (self.flags.cache(), ledger::read_network(&self.network));
        let mut listing = cache.list();
        // If the records cannot be read, every attachment of another vendor's plugins would look stale.
        if let Some(at) = listing.problems.iter().position(|problem| problem.path == cache.results()) {
            return Err(Failure::context(context())(listing.problems.swap_remove(at).error));
        }
        let mut valid = expand_keep(&self.keep, &listing, &files, &self.network);
        valid.extend(in_progress(&files));
        if !self.all {
            valid.extend(possibly_in_use(&listing, &files, &self.network));
        }
        let unrecorded = if list.disable_gc {
            Vec::new()
        } else {
            Unrecorded::among(files, &listing.records, &self.network, &valid)
        };
        if self.dry_run {
            let records = listing.records.iter().filter(|_| !list.disable_gc);
            let stale = stale_rows(records, &unrecorded, &self.network, &valid);
            return Ok(report("would remove", "stale", &stale));
        }
        let runtime = self.flags.runtime();
        let outcome = runtime.gc_of(&list, listing.records, &valid);
        let mut removed: Vec<ReportRow> = outcome.removed.iter().map(ReportRow::recorded).collect();
        let mut errors = outcome.errors;
        // The plugins' GC, a part of `gc_of`, has deleted some of these: from CNI version 1.1.0 on, those of Podwire's
        // plugins that are in the config. This loop deletes the others and reports both.
        for one in unrecorded {
            match one.delete(runtime.deadline()) {
                Ok(()) if one.is_gone() => removed.push(ReportRow::unrecorded(&one)),
                // A new ADD of the same attachment ran meanwhile.
                Ok(()) => {}
                Err(error) => errors.push(podwire_cni_runtime::Error::Cni(error.to_cni())),
            }
        }
        let mut output = report("removed", "removed", &removed);
        if removed.is_empty() && !errors.is_empty() {
            // Nothing was removed, but something is stale.
            output.text.clear();
        }
        delete_unused_tables();
        match podwire_cni_runtime::Error::all(errors) {
            Ok(()) => Ok(output),
            Err(error) => Err(Failure::context(context())(error).with_output(output)),
        }
    }
}

/// The attachments that `--keep` names. A container without an interface stands for all its attachments in the records,
/// in the ledger, and in the file names of unreadable records.
fn expand_keep(
    keep: &[(ContainerId, Option<IfName>)],
    listing: &Listing,
    files: &[LedgerFile],
    network: &str,
) -> Vec<(ContainerId, IfName)> {
    let recorded = listing.records.iter().filter(|record| record.network == network);
    let recorded = recorded.filter_map(|record| parse_attachment(&record.container, &record.ifname));
    let in_ledger = files.iter().flat_map(|file| &file.entries);
    let in_ledger = in_ledger.filter_map(|entry| parse_attachment(&entry.container, &entry.ifname));
    let known: Vec<_> = recorded.chain(in_ledger).chain(unreadable(listing, network)).collect();
    let mut kept = Vec::new();
    for (container, ifname) in keep {
        match ifname {
            Some(ifname) => kept.push((container.clone(), ifname.clone())),
            None => kept.extend(known.iter().filter(|(other, _)| other == container).cloned()),
        }
    }
    kept
}

/// The attachments that an ADD is creating, or that another GC or audit is deleting. A plain DEL takes no lock.
fn in_progress(files: &[LedgerFile]) -> Vec<(ContainerId, IfName)> {
    let entries = files.iter().filter(|file| file.is_locked).flat_map(|file| &file.entries);
    entries.filter_map(|entry| parse_attachment(&entry.container, &entry.ifname)).collect()
}

fn parse_attachment(container: &str, ifname: &str) -> Option<(ContainerId, IfName)> {
    Some((ContainerId::parse(container).ok()?, IfName::parse(ifname).ok()?))
}

/// The attachments whose namespace exists, or for which it is unknown whether it does.
fn possibly_in_use(listing: &Listing, files: &[LedgerFile], network: &str) -> Vec<(ContainerId, IfName)> {
    let entries = || files.iter().flat_map(|file| &file.entries);
    let ledger_entries_of = |record: &Record| {
        let (container, ifname) = (record.container.clone(), record.ifname.clone());
        entries().filter(move |entry| (&entry.container, &entry.ifname) == (&container, &ifname))
    };
    let has_netns = |record: &&Record| {
        // The recorded path may lead to another pod's namespace by now, when a PID is reused. The ledger has the
        // cookie of the namespace to tell them apart.
        let netns = record.netns.as_deref();
        netns.is_none_or(|path| may_exist(ledger::find_recorded_netns(path, ledger_entries_of(record))))
    };
    let recorded = listing.records.iter().filter(|record| record.network == network).filter(has_netns);
    let recorded = recorded.filter_map(|record| parse_attachment(&record.container, &record.ifname));
    // The attachments of runtimes that keep no records are only in the ledger. An entry without a result is of an ADD
    // that is in progress (see `in_progress`) or was killed: no runtime got its result.
    let in_ledger = entries().filter(|entry| entry.result.is_some() && may_exist(entry.find_netns()));
    let in_ledger = in_ledger.filter_map(|entry| parse_attachment(&entry.container, &entry.ifname));
    recorded.chain(in_ledger).chain(unreadable(listing, network)).collect()
}

/// The attachments to which unreadable records may belong. The file of a record is called NETWORK-CONTAINER-IFNAME.
/// Container and interface names may contain dashes, so this returns every way to split the name.
fn unreadable(listing: &Listing, network: &str) -> Vec<(ContainerId, IfName)> {
    let names = listing
        .problems
        .iter()
        .filter_map(|problem| problem.path.file_name()?.to_str()?.strip_prefix(network)?.strip_prefix('-'));
    let split = |name: &str| -> Vec<(ContainerId, IfName)> {
        let dashes = name.match_indices('-');
        dashes.filter_map(|(at, _)| parse_attachment(&name[..at], &name[at + 1..])).collect()
    };
    names.flat_map(split).collect()
}

/// Whether a namespace exists. If that is unknown, it counts as existing.
fn may_exist(found: podwire_kernel::Result<Option<Netns>>) -> bool {
    !matches!(found, Ok(None))
}

fn stale_rows<'r>(
    records: impl Iterator<Item = &'r Record>,
    unrecorded: &[Unrecorded],
    network: &str,
    valid: &[(ContainerId, IfName)],
) -> Vec<ReportRow> {
    let is_valid = |record: &Record| {
        valid.iter().any(|(container, ifname)| **container == record.container && **ifname == record.ifname)
    };
    let recorded = records.filter(|record| record.network == network && !is_valid(record));
    recorded.map(ReportRow::recorded).chain(unrecorded.iter().map(ReportRow::unrecorded)).collect()
}

/// An attachment in the output.
struct ReportRow {
    container: String,
    /// The pod's name, or the short id of the container.
    label: String,
    ifname: String,
    addresses: Vec<String>,
}

impl ReportRow {
    fn recorded(record: &Record) -> ReportRow {
        let (container, ifname) = (record.container.clone(), record.ifname.clone());
        ReportRow { container, label: label(record), ifname, addresses: addresses(record) }
    }

    fn unrecorded(one: &Unrecorded) -> ReportRow {
        let (container, label) = (one.container.clone(), short(&one.container).to_owned());
        ReportRow { container, label, ifname: one.ifname.clone(), addresses: Vec::new() }
    }
}

fn report(verb: &str, key: &str, rows: &[ReportRow]) -> Output {
    let line = |row: &ReportRow| {
        let text = format!("{verb} {} {} {}", row.label, row.ifname, row.addresses.join(" "));
        format!("{}\n", text.trim_end())
    };
    let json = |row: &ReportRow| json!({ "container": row.container, "ifname": row.ifname, "addresses": row.addresses });
    let text = match rows {
        [] => "nothing is stale\n".to_owned(),
        some => some.iter().map(line).collect(),
    };
    Output::new(text, json!({ key: rows.iter().map(json).collect::<Vec<_>>() }))
}

/// Deletes Podwire's nftables tables that are empty and not needed otherwise. Plugins do not, because another pod may be
/// about to use them. All networks share the tables, so `disableGC` of this network does not apply.
fn delete_unused_tables() {
    // A table is deleted only if no rule has changed since it was found to be empty. An empty table does no harm, so a
    // failure is ignored.
    let _ = podwire_kernel::firewall::drop_unneeded_tables();
}

fn parse_keep(text: &str) -> Result<(ContainerId, Option<IfName>), String> {
    let (container, ifname) = match text.split_once('/') {
        Some((container, ifname)) => {
            (container, Some(IfName::parse(ifname).map_err(|error| error.to_string())?))
        }
        None => (text, None),
    };
    Ok((ContainerId::parse(container).map_err(|error| error.to_string())?, ifname))
}

#[cfg(test)]
mod tests {
    use podwire_cni_runtime::Problem;

    use super::*;

    #[test]
    fn keep_of_a_container_includes_its_unreadable_records() {
        let problem = |name: &str| Problem {
            path: format!("/var/lib/cni/results/{name}").into(),
            error: podwire_cni_spec::Error::decode("EOF while parsing a value").into(),
        };
        let problems =
            vec![problem("pods-web-2-eth0"), problem("other-web-2-eth1"), problem("pods-web-3-eth0")];
        let listing = Listing { records: Vec::new(), problems };
        let cases = [
            ("web-2", vec![("web-2", "eth0")]),
            // The same file name may belong to this attachment.
            ("web", vec![("web", "2-eth0"), ("web", "3-eth0")]),
            ("web-2/net1", vec![("web-2", "net1")]),
            ("web-1", vec![]),
        ];
        for (keep, expected) in cases {
            let kept = expand_keep(&[parse_keep(keep).unwrap()], &listing, &[], "pods");
            let kept: Vec<_> = kept.iter().map(|(container, ifname)| (&**container, &**ifname)).collect();
            assert_eq!(kept, expected, "--keep {keep}");
        }
    }
}
