//! ADD, DEL and GC with the ledger: recorded for every plugin, without code in the plugin.

use std::collections::HashMap;
use std::time::Instant;

use podwire_cni_spec::ValidAttachment;
use serde_json::Value;

use crate::{ledger, Command, Error, Plugin, Registry, Request, Result};

/// Records the request before the plugin changes anything.
pub(crate) fn add(plugin: &dyn Plugin, req: &Request<'_>) -> Result<Value> {
    let open = plugin.is_recorded().then(|| ledger::OpenEntry::begin(plugin.name(), req)).transpose()?;
    let added = plugin.add(req).and_then(|attachment| {
        // An attachment whose result cannot be encoded in the config's version is removed again.
        let json = attachment.to_json(req.version);
        Ok(json.inspect_err(|_| drop(plugin.del(req)))?)
    });
    match (&added, open) {
        (Ok(result), Some(open)) => open.complete(result),
        (Err(_), Some(open)) => open.abandon(),
        (_, None) => {}
    }
    added
}

/// If the runtime passes no result, because it lost it or never kept one, the result comes from the ledger.
pub(crate) fn del(plugin: &dyn Plugin, req: &Request<'_>) -> Result<()> {
    if !plugin.is_recorded() {
        return plugin.del(req);
    }
    match req.prev {
        Some(_) => plugin.del(req)?,
        None => plugin.del(&Request { prev: recorded_result(plugin, req), ..req.clone() })?,
    }
    ledger::remove(&req.owner(), plugin.name())
}

fn recorded_result(plugin: &dyn Plugin, req: &Request<'_>) -> Option<podwire_cni_spec::Attachment> {
    let file = ledger::find(&req.owner(), plugin.name())?;
    file.entries.last()?.request(Command::Del, req.registry).ok()?.prev
}

/// Deletes every attachment in the ledger that is no longer valid, with the config of its ADD. Then the plugin looks for objects
/// that have no ledger file.
pub(crate) fn gc(plugin: &dyn Plugin, req: &Request<'_>) -> Result<()> {
    let valid = req.valid()?;
    let mut errors = Vec::new();
    // The caller knows ADDs that are not in this plugin's ledger.
    let mut busy = req.busy.clone();
    // The ledger files that remain.
    let mut left = Vec::new();
    for file in ledger::read_plugin(&req.network, plugin.name()) {
        let Some(entry) = file.entries.first() else {
            // The ADD was killed before it wrote its request, and so before it changed anything; or it is about to write.
            errors.extend(
                file.lock_unchanged()
                    .and_then(|held| held.map_or(Ok(()), ledger::LockedLedgerFile::remove))
                    .err(),
            );
            continue;
        };
        let is_valid = valid.contains(&entry.container, &entry.ifname);
        if !is_valid && file.is_locked {
            busy.push(attachment(entry));
        } else if !is_valid {
            match delete_recorded_unless_changed(plugin, &file, req.registry, req.deadline) {
                Ok(()) => continue,
                Err(error) => errors.push(error),
            }
        }
        left.push(file);
    }
    busy.extend(added_since(&left, ledger::read_plugin(&req.network, plugin.name())));
    errors.extend(plugin.gc(&Request { busy, ..req.clone() }).err());
    Error::all(errors)
}

/// The attachments whose ledger files are new or changed since `left` was read: the deletions above may have taken long.
fn added_since(
    left: &[ledger::LedgerFile],
    now: Vec<ledger::LedgerFile>,
) -> impl Iterator<Item = ValidAttachment> + '_ {
    let left: HashMap<_, _> = left.iter().map(|file| (&file.path, &file.entries)).collect();
    let new = now.into_iter().filter(move |file| {
        file.is_locked || left.get(&file.path).is_none_or(|entries| **entries != file.entries)
    });
    new.filter_map(|file| file.entries.into_iter().next()).map(|entry| attachment(&entry))
}

fn attachment(entry: &ledger::Entry) -> ValidAttachment {
    ValidAttachment { container_id: entry.container.clone(), ifname: entry.ifname.clone() }
}

/// Deletes everything in a ledger file, unless the file was changed since it was read.
pub fn delete_recorded_unless_changed(
    plugin: &dyn Plugin,
    file: &ledger::LedgerFile,
    registry: Registry<'_>,
    deadline: Option<Instant>,
) -> Result<()> {
    file.lock_unchanged()?.map_or(Ok(()), |locked| delete_recorded(plugin, locked, registry, deadline))
}

/// Deletes everything in a ledger file, the last entry first, then the file. The file may be stale: a Go plugin that detached
/// the pod did not remove it. Plugins that are executed for it are stopped at the deadline.
pub fn delete_recorded(
    plugin: &dyn Plugin,
    file: ledger::LockedLedgerFile<'_>,
    registry: Registry<'_>,
    deadline: Option<Instant>,
) -> Result<()> {
    for entry in file.entries().iter().rev() {
        plugin.del(&Request { signed_only: true, deadline, ..entry.request(Command::Del, registry)? })?;
    }
    file.remove()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use podwire_cni_spec::{Attachment, Version};
    use serde_json::json;

    use super::*;
    use crate::{Finding, Source};

    thread_local! {
        static DELETED: Cell<bool> = const { Cell::new(false) };
        static KEPT: Cell<bool> = const { Cell::new(false) };
    }

    /// Its result has no address, which old versions cannot encode.
    struct Bare;

    impl Plugin for Bare {
        fn name(&self) -> &'static str {
            "bare"
        }
        fn about(&self) -> &'static str {
            "bare: for this test"
        }
        fn is_recorded(&self) -> bool {
            false
        }
        fn add(&self, _: &Request<'_>) -> Result<Attachment> {
            Ok(Attachment::default())
        }
        fn del(&self, _: &Request<'_>) -> Result<()> {
            DELETED.set(true);
            Ok(())
        }
        fn inspect<'p>(&self, _: &Request<'p>) -> Result<Vec<Finding<'p>>> {
            Ok(Vec::new())
        }
        fn gc(&self, req: &Request<'_>) -> Result<()> {
            KEPT.set(req.valid()?.contains("c", "eth0"));
            Ok(())
        }
        fn status(&self, _: &Request<'_>) -> Result<()> {
            Ok(())
        }
    }

    /// An IPAM plugin has no ledger: its caller knows which attachments are in progress.
    #[test]
    fn gc_keeps_the_attachments_that_the_caller_is_adding() {
        let config =
            json!({"cniVersion": "1.1.0", "name": "net", "type": "bare", "cni.dev/valid-attachments": []});
        let req = Request::new(Command::Gc, &Source::default(), config, Registry::none()).unwrap();
        super::gc(
            &Bare,
            &Request {
                busy: vec![ValidAttachment { container_id: "c".into(), ifname: "eth0".into() }],
                ..req
            },
        )
        .unwrap();
        assert!(KEPT.get());
    }

    #[test]
    fn a_result_that_the_version_cannot_encode_is_removed() {
        let source = Source { container: "c".into(), ifname: "eth0".into(), ..Source::default() };
        let add = |version: Version| {
            let config = json!({"cniVersion": version, "name": "net", "type": "bare"});
            super::add(&Bare, &Request::new(Command::Add, &source, config, Registry::none()).unwrap())
        };
        assert!(add(Version::V1_0_0).is_ok() && !DELETED.get());
        assert!(add(Version::V0_2_0).is_err() && DELETED.get());
    }
}
