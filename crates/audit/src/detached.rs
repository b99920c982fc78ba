//! Objects of pods that are gone, and of ADDs that did not finish.

use podwire_cni_plugin::ledger::{LedgerFile, LockedLedgerFile};
use podwire_cni_plugin::{delete_recorded, Context, Error, Result};
use podwire_cni_runtime::Record;

use crate::inventory::{is_settled, Inventory, KnownAttachment, PodState};
use crate::{Fault, Location, Node};

pub(crate) fn faults<'p>(node: &'p Node<'p>, inventory: &Inventory) -> Vec<Fault<'p>> {
    let mut faults = Vec::new();
    for one in &inventory.attachments {
        let owner = one.owner.comment();
        let location = if one.ledger_files.is_empty() { Location::Record } else { Location::Ledger };
        let what = match one.state {
            PodState::Gone => format!("the pod is gone, but not {}", owned_objects(one)),
            PodState::Running | PodState::Unknown if one.is_unfinished() => {
                "an ADD did not finish".to_owned()
            }
            _ => continue,
        };
        let stuck =
            one.record.as_ref().and_then(|record| Some((record, node.runtime.find_del_obstacle(record)?)));
        match stuck {
            None => faults.push(Fault::new(location, owner, what).repaired_by(deletion(
                node,
                one,
                one.record.clone(),
            ))),
            Some((record, obstacle)) => {
                if !one.ledger_files.is_empty() {
                    let fault = Fault::new(Location::Ledger, &*owner, what);
                    faults.push(fault.repaired_by(deletion(node, one, None)));
                }
                let what = format!(
                    "DEL of the record cannot succeed ({}): {} removes the record",
                    obstacle.to_cni().msg,
                    forced_del(record)
                );
                faults.push(Fault::new(Location::Record, owner, what));
            }
        }
    }
    for file in &inventory.empty {
        let (path, file) = (file.path.display(), file.clone());
        let fault = Fault::new(Location::Ledger, "", format!("{path} is empty: an ADD was killed"));
        faults
            .push(fault.repaired_by(move || file.lock_unchanged()?.map_or(Ok(()), LockedLedgerFile::remove)));
    }
    for problem in &inventory.unreadable {
        let path = problem.path.clone();
        let fault = Fault::new(Location::Record, "", format!("{problem}"));
        // A runtime may be writing it at this moment.
        if !is_settled(&path) {
            faults.push(fault);
            continue;
        }
        faults.push(fault.repaired_by(move || {
            std::fs::remove_file(&path)
                .map_err(|error| podwire_cni_spec::Error::new(podwire_cni_spec::code::IO, error.to_string()))
                .doing(|| format!("remove {}", path.display()))
        }));
    }
    faults
}

/// A list of what is left.
fn owned_objects(one: &KnownAttachment) -> String {
    let mut parts: Vec<String> = one
        .ledger_files
        .iter()
        .filter_map(|file| file.entries.first())
        .map(|entry| format!("the objects of {}", entry.plugin))
        .collect();
    parts.extend(one.record.as_ref().map(|record| format!("the record {}", record.path.display())));
    parts.join(", ")
}

/// DEL as the runtime would do it, if it has a record; then DEL of what is left in the ledger. A container that was restarted
/// under its id since the inventory is left alone.
fn deletion<'p>(
    node: &'p Node<'p>,
    one: &KnownAttachment,
    record: Option<Record>,
) -> impl FnOnce() -> Result<()> + 'p {
    let files = one.ledger_files.clone();
    move || {
        let locked: Option<Vec<LockedLedgerFile<'_>>> =
            files.iter().map(LedgerFile::lock_unchanged).collect::<Result<_>>()?;
        let Some(locked) = locked else { return Ok(()) };
        let mut errors = Vec::new();
        if record.as_ref().is_some_and(|record| node.runtime.has_changed(record)) {
            return Ok(());
        }
        errors.extend(record.and_then(|record| delete(node, &record).err()));
        for file in locked.into_iter().rev().filter(LockedLedgerFile::exists) {
            let plugin = file.entries().first().and_then(|entry| node.registry.find(&entry.plugin));
            errors.extend(match plugin {
                Some(plugin) => delete_recorded(plugin, file, node.registry, node.runtime.deadline()).err(),
                // Another build of Podwire has a plugin that this one does not have.
                None => {
                    let text =
                        format!("{} is of a plugin that this program does not have", file.path().display());
                    Some(podwire_cni_spec::Error::internal(text).into())
                }
            });
        }
        Error::all(errors)
    }
}

fn delete(node: &Node<'_>, record: &Record) -> Result<()> {
    let deleted = record.network_list().and_then(|list| node.runtime.del(&list, &record.identity()?));
    let deleted = deleted.map_err(|error| {
        let error = error.to_cni();
        let force = format!("if it can never succeed, {} removes the record", forced_del(record));
        let hints: Vec<String> =
            [error.details.clone(), force].into_iter().filter(|hint| !hint.is_empty()).collect();
        Error::Cni(error.with_details(hints.join("; ")))
    });
    deleted.doing(|| format!("delete {} from {}", record.container, record.network))
}

/// The command that removes a record although DEL fails.
fn forced_del(record: &Record) -> String {
    let Record { network, container, ifname, .. } = record;
    format!("`podwire cni del {network} --container {container} --ifname {ifname} --force`")
}
