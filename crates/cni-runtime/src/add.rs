//! ADD: runs the plugins of a network in order, and DEL backwards if one of them fails.

use std::path::PathBuf;

use podwire_cni_plugin::Command;
use podwire_cni_spec::{Attachment, NetworkList};
use podwire_kernel::{Host, Netns};
use serde_json::Value;

use crate::cache::in_version;
use crate::invoke::{Call, Step};
use crate::{Error, Identity, Record, Result, Runtime};

/// The progress of an ADD that failed, and its error.
struct Failure {
    /// How many plugins were started.
    started: usize,
    /// The result of the last plugin that succeeded.
    result: Option<Value>,
    error: Error,
}

impl Runtime<'_> {
    /// Attaches a container to a network.
    ///
    /// If it fails, DEL runs for the plugins that ran, including the failing one, and no record stays. The error has the failing
    /// plugin's code and lists what could not be undone. If the container is already attached according to its record, nothing
    /// is undone, because it may be running, unless the interface of the record does not exist.
    ///
    /// Leftovers of an interrupted ADD of the same container are removed first.
    pub fn add(&self, list: &NetworkList, identity: &Identity) -> Result<Attachment> {
        let chain = self.chain(list, Command::Add)?;
        let path = self.cache.path(&list.name, &identity.container, &identity.ifname)?;
        let mut record = Record::new(path, list, identity);
        let earlier = self.prepare(list, identity)?;
        if earlier.is_none() {
            self.cache.write(&record)?;
        }
        let failure = match self.run_add(list, identity, &chain) {
            Ok((attachment, result)) => {
                record.result = Some(result.clone());
                match self.cache.complete(&record) {
                    Ok(()) => return Ok(attachment),
                    Err(error) => Box::new(Failure { started: chain.len(), result: Some(result), error }),
                }
            }
            Err(failure) => failure,
        };
        Err(match earlier {
            Some(record) => Error::Attached { record, source: Box::new(failure.error) },
            None => self.undo(list, identity, &record, *failure),
        })
    }

    /// Returns the record of an earlier ADD that succeeded and whose interface still exists. Removes what another earlier ADD
    /// left.
    fn prepare(&self, list: &NetworkList, identity: &Identity) -> Result<Option<PathBuf>> {
        match self.cache.find(&list.name, identity) {
            Ok(Some(record)) if record.result.is_some() && !is_stale(&record, identity) => {
                Ok(Some(record.path))
            }
            Ok(Some(record)) => {
                // If this fails, a plugin's ADD fails too, with a better text.
                let _ = self.delete_recorded(list, &record);
                Ok(None)
            }
            Err(error @ Error::Foreign { .. }) => Err(error),
            // An unreadable record is ignored.
            Ok(None) | Err(_) => Ok(None),
        }
    }

    fn run_add(
        &self,
        list: &NetworkList,
        identity: &Identity,
        chain: &[Step<'_, '_>],
    ) -> Result<(Attachment, Value), Box<Failure>> {
        let deadline = self.deadline();
        let mut last: Option<(Attachment, Value)> = None;
        for (at, step) in chain.iter().enumerate() {
            let prev = last.as_ref().map(|(_, result)| result);
            let config = step.config.request(list, prev, &identity.capabilities);
            let call = Call { command: Command::Add, identity: Some(identity), config, deadline };
            let answer = self.call(list, step, call);
            let read = answer.and_then(|answer| {
                in_version(answer.unwrap_or(Value::Null), list.version, list.version).map_err(|error| {
                    match error {
                        Error::Cni(error) => step.invalid_result(list, error),
                        other => other,
                    }
                })
            });
            match read {
                Ok(result) => last = Some(result),
                Err(error) => {
                    let result = last.map(|(_, result)| result);
                    return Err(Box::new(Failure { started: at + 1, result, error }));
                }
            }
        }
        let none = || Failure {
            started: 0,
            result: None,
            error: podwire_cni_spec::Error::internal("no plugin ran").into(),
        };
        last.ok_or_else(|| Box::new(none()))
    }

    fn undo(&self, list: &NetworkList, identity: &Identity, record: &Record, failure: Failure) -> Error {
        let Failure { started, result, error } = failure;
        let mut errors = self.run_del(list, &list.plugins[..started], identity, result.as_ref());
        if errors.is_empty() {
            errors.extend(self.cache.remove(&record.path).err());
        }
        if errors.is_empty() {
            return error;
        }
        // The record stays, so that the rest can be removed later.
        Error::Undo { source: Box::new(error), undo: errors }
    }
}

/// Whether the interface of the record is gone, as after a reboot when the namespace was created again under its name.
fn is_stale(record: &Record, identity: &Identity) -> bool {
    let interfaces = record.attachment().map(|made| made.interfaces).unwrap_or_default();
    let was_made = interfaces.iter().any(|one| one.name == *identity.ifname && !one.sandbox.is_empty());
    was_made && record.netns == identity.netns && lacks_interface(identity)
}

fn lacks_interface(identity: &Identity) -> bool {
    let Some(Ok(netns)) = identity.netns.as_ref().map(Netns::open) else { return false };
    let look = |pod: Host| pod.peek_link(&identity.ifname);
    matches!(Host::within(netns).and_then(look), Err(error) if error.is_gone())
}
