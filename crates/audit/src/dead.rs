//! What belongs to pods that are gone, or never came to be.

use podwire_cni_plugin::ledger::{Account, Held};
use podwire_cni_plugin::{withdraw, Context, Error, Result};
use podwire_cni_runtime::Record;

use crate::census::{is_settled, Census, Known, Life};
use crate::{Fault, Node, Side};

pub(crate) fn faults<'p>(node: &'p Node<'p>, census: &Census) -> Vec<Fault<'p>> {
    let mut faults = Vec::new();
    for one in &census.known {
        let owner = one.owner.comment();
        let side = if one.accounts.is_empty() { Side::Record } else { Side::Ledger };
        let what = match one.life {
            Life::Dead => format!("its pod is gone, and {} is not", belongings(one)),
            Life::Alive | Life::Unknown if one.is_unfinished() => {
                "an ADD that never came to its end".to_owned()
            }
            _ => continue,
        };
        faults.push(Fault::new(side, owner, what).mended_by(withdrawal(node, one)));
    }
    for account in &census.torn {
        let (file, account) = (account.file.display().to_string(), account.clone());
        let fault = Fault::new(Side::Ledger, "", format!("{file} tells of nothing: torn by a crash"));
        faults.push(fault.mended_by(move || account.hold()?.map_or(Ok(()), Held::close)));
    }
    for problem in &census.unreadable {
        let path = problem.path.clone();
        let fault = Fault::new(Side::Record, "", format!("{problem}"));
        // Somebody may be writing it at this moment.
        faults.push(match is_settled(&path) {
            true => fault.mended_by(move || {
                std::fs::remove_file(&path)
                    .map_err(|error| {
                        podwire_cni_spec::Error::new(podwire_cni_spec::code::IO, error.to_string())
                    })
                    .doing(|| format!("remove {}", path.display()))
            }),
            false => fault,
        });
    }
    faults
}

/// What is left, in words.
fn belongings(one: &Known) -> String {
    let mut parts: Vec<String> = one
        .accounts
        .iter()
        .filter_map(|account| account.entries.first())
        .map(|entry| format!("what {} made", entry.plugin))
        .collect();
    parts.extend(one.record.as_ref().map(|record| format!("the record {}", record.path.display())));
    parts.join(", ")
}

/// DEL as the runtime would do it, if it has a record; then whatever our plugins still have written down. A container that was started again
/// under its id since it was judged is left alone.
fn withdrawal<'p>(node: &'p Node<'p>, one: &Known) -> impl FnOnce() -> Result<()> + 'p {
    let (record, accounts) = (one.record.clone(), one.accounts.clone());
    move || {
        let held: Option<Vec<Held<'_>>> = accounts.iter().map(Account::hold).collect::<Result<_>>()?;
        let Some(held) = held else { return Ok(()) };
        let mut errors = Vec::new();
        if record.as_ref().is_some_and(|record| node.runtime.has_changed(record)) {
            return Ok(());
        }
        errors.extend(record.and_then(|record| forget(node, &record).err()));
        for account in held.into_iter().rev().filter(Held::is_there) {
            let plugin = account.entries().first().and_then(|entry| node.registry.find(&entry.plugin));
            errors.extend(match plugin {
                Some(plugin) => withdraw(plugin, account, node.registry, node.runtime.deadline()).err(),
                // A plugin of a later build: its file says nothing to us.
                None => {
                    let text = format!("{} is no plugin of this program", account.file().display());
                    Some(podwire_cni_spec::Error::internal(text).into())
                }
            });
        }
        Error::all(errors)
    }
}

fn forget(node: &Node<'_>, record: &Record) -> Result<()> {
    let deleted = record
        .network_list()
        .and_then(|list| node.runtime.del(&list, &record.identity()?))
        .map_err(|error| Error::Cni(error.to_cni()));
    deleted.doing(|| format!("delete {} from {}", record.container, record.network))
}
