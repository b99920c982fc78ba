//! ADD, DEL and GC with the ledger: recorded for every plugin, without code in the plugin.

use std::collections::HashMap;
use std::time::Instant;

use podwire_cni_spec::ValidAttachment;
use serde_json::Value;

use crate::{ledger, Command, Error, Plugin, Registry, Request, Result};

/// Records the request before the plugin changes anything.
pub(crate) fn add(plugin: &dyn Plugin, req: &Request<'_>) -> Result<Value> {
    let open = plugin.is_recorded().then(|| ledger::OpenAccount::begin(plugin.name(), req)).transpose()?;
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
    ledger::close(&req.owner(), plugin.name())
}

fn recorded_result(plugin: &dyn Plugin, req: &Request<'_>) -> Option<podwire_cni_spec::Attachment> {
    let account = ledger::find(&req.owner(), plugin.name())?;
    account.entries.last()?.request(Command::Del, req.registry).ok()?.prev
}

/// Deletes every attachment in the ledger that is no longer valid, with the config of its ADD. Then the plugin looks for objects
/// without an account.
pub(crate) fn gc(plugin: &dyn Plugin, req: &Request<'_>) -> Result<()> {
    let valid = req.valid()?;
    let mut errors = Vec::new();
    // The caller knows ADDs that are not in this plugin's ledger.
    let mut busy = req.busy.clone();
    // The accounts that remain.
    let mut left = Vec::new();
    for account in ledger::of_network(&req.network, plugin.name()) {
        let Some(entry) = account.entries.first() else {
            // The ADD was killed before it wrote its request, and so before it changed anything; or it is about to write.
            errors.extend(
                account
                    .lock_unchanged()
                    .and_then(|held| held.map_or(Ok(()), ledger::LockedAccount::close))
                    .err(),
            );
            continue;
        };
        let is_valid = valid.contains(&entry.container, &entry.ifname);
        if !is_valid && account.busy {
            busy.push(attachment(entry));
        } else if !is_valid {
            match delete_recorded_unless_changed(plugin, &account, req.registry, req.deadline) {
                Ok(()) => continue,
                Err(error) => errors.push(error),
            }
        }
        left.push(account);
    }
    busy.extend(added_since(&left, ledger::of_network(&req.network, plugin.name())));
    errors.extend(plugin.gc(&Request { busy, ..req.clone() }).err());
    Error::all(errors)
}

/// The attachments whose accounts are new or changed since `left` was read: the deletions above may have taken long.
fn added_since(
    left: &[ledger::Account],
    now: Vec<ledger::Account>,
) -> impl Iterator<Item = ValidAttachment> + '_ {
    let left: HashMap<_, _> = left.iter().map(|account| (&account.file, &account.entries)).collect();
    let new = now.into_iter().filter(move |account| {
        account.busy || left.get(&account.file).is_none_or(|entries| **entries != account.entries)
    });
    new.filter_map(|account| account.entries.into_iter().next()).map(|entry| attachment(&entry))
}

fn attachment(entry: &ledger::Entry) -> ValidAttachment {
    ValidAttachment { container_id: entry.container.clone(), ifname: entry.ifname.clone() }
}

/// Deletes everything in an account, unless the account was changed since it was read.
pub fn delete_recorded_unless_changed(
    plugin: &dyn Plugin,
    account: &ledger::Account,
    registry: Registry<'_>,
    deadline: Option<Instant>,
) -> Result<()> {
    account.lock_unchanged()?.map_or(Ok(()), |locked| delete_recorded(plugin, locked, registry, deadline))
}

/// Deletes everything in an account, the last entry first, then the account. The account may be stale: a Go plugin that detached
/// the pod did not close it. Plugins that are executed for it are stopped at the deadline.
pub fn delete_recorded(
    plugin: &dyn Plugin,
    account: ledger::LockedAccount<'_>,
    registry: Registry<'_>,
    deadline: Option<Instant>,
) -> Result<()> {
    for entry in account.entries().iter().rev() {
        plugin.del(&Request { signed_only: true, deadline, ..entry.request(Command::Del, registry)? })?;
    }
    account.close()
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
