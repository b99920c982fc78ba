//! ADD, DEL and GC with the ledger's help: what every plugin gets from it without a line of its own.

use std::collections::HashMap;
use std::time::Instant;

use podwire_cni_spec::ValidAttachment;
use serde_json::Value;

use crate::{ledger, Command, Error, Plugin, Registry, Request, Result};

/// The request is in the ledger before the plugin lays a hand on anything.
pub(crate) fn add(plugin: &dyn Plugin, req: &Request<'_>) -> Result<Value> {
    let open = match plugin.is_recorded() {
        true => Some(ledger::Open::begin(plugin.name(), req)?),
        false => None,
    };
    let added = plugin.add(req).and_then(|attachment| {
        // What cannot be told in the config's version is not to stand.
        let told = attachment.to_json(req.version);
        Ok(told.inspect_err(|_| drop(plugin.del(req)))?)
    });
    match (&added, open) {
        (Ok(result), Some(open)) => open.complete(result),
        (Err(_), Some(open)) => open.abandon(),
        (_, None) => {}
    }
    added
}

/// A runtime that lost the result, or never kept one, is helped out by the ledger.
pub(crate) fn del(plugin: &dyn Plugin, req: &Request<'_>) -> Result<()> {
    if !plugin.is_recorded() {
        return plugin.del(req);
    }
    match req.prev {
        Some(_) => plugin.del(req)?,
        None => plugin.del(&Request { prev: remembered(plugin, req), ..req.clone() })?,
    }
    ledger::close(&req.owner(), plugin.name())
}

fn remembered(plugin: &dyn Plugin, req: &Request<'_>) -> Option<podwire_cni_spec::Attachment> {
    let account = ledger::find(&req.owner(), plugin.name())?;
    account.entries.last()?.request(Command::Del, req.registry).ok()?.prev
}

/// Everything in the ledger that is not valid any more is deleted as its owner would delete it, with the config that
/// it was added with; then the plugin looks for what has no account.
pub(crate) fn gc(plugin: &dyn Plugin, req: &Request<'_>) -> Result<()> {
    let valid = req.valid()?;
    let mut errors = Vec::new();
    // Whoever calls this plugin knows of ADDs that its own ledger does not have.
    let mut busy = req.busy.clone();
    // What is left of the accounts when those that are nobody's are gone.
    let mut left = Vec::new();
    for account in ledger::of_network(&req.network, plugin.name()) {
        let Some(entry) = account.entries.first() else {
            // Killed before it could write a word, and so before it did anything; or about to write.
            errors.extend(account.hold().and_then(|held| held.map_or(Ok(()), ledger::Held::close)).err());
            continue;
        };
        let is_valid = valid.contains(&entry.container, &entry.ifname);
        match account.busy {
            _ if is_valid => {}
            true => busy.push(attachment(entry)),
            false => match withdraw_unless_changed(plugin, &account, req.registry, req.deadline) {
                Ok(()) => continue,
                Err(error) => errors.push(error),
            },
        }
        left.push(account);
    }
    busy.extend(came_since(&left, ledger::of_network(&req.network, plugin.name())));
    errors.extend(plugin.gc(&Request { busy, ..req.clone() }).err());
    Error::all(errors)
}

/// Whom the accounts tell of now that are not among those that were left, or not as they were then: all that may have taken a while.
fn came_since(
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

/// DEL of everything in an account that was judged to be nobody's, unless somebody is at work on it by now, or was.
pub fn withdraw_unless_changed(
    plugin: &dyn Plugin,
    account: &ledger::Account,
    registry: Registry<'_>,
    deadline: Option<Instant>,
) -> Result<()> {
    account.hold()?.map_or(Ok(()), |held| withdraw(plugin, held, registry, deadline))
}

/// DEL of everything in an account, the last first; then the account itself goes. It may be an old one: a Go plugin that
/// detached the pod has not closed it. Programs of others that are executed for it are stopped at the deadline.
pub fn withdraw(
    plugin: &dyn Plugin,
    account: ledger::Held<'_>,
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

    /// Gives an interface without addresses, of which old versions cannot tell.
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

    /// An IPAM plugin has no ledger of its own: its caller knows whose address is being given.
    #[test]
    fn a_plugin_that_is_called_by_another_leaves_alone_what_that_one_is_at_work_on() {
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
    fn a_result_that_the_version_cannot_tell_is_taken_back() {
        let source = Source { container: "c".into(), ifname: "eth0".into(), ..Source::default() };
        let add = |version: Version| {
            let config = json!({"cniVersion": version, "name": "net", "type": "bare"});
            super::add(&Bare, &Request::new(Command::Add, &source, config, Registry::none()).unwrap())
        };
        assert!(add(Version::V1_0_0).is_ok() && !DELETED.get());
        assert!(add(Version::V0_2_0).is_err() && DELETED.get());
    }
}
