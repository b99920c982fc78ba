//! ADD: the plugins of a network one after the other, and backwards if one of them fails.

use std::path::PathBuf;

use podwire_cni_plugin::Command;
use podwire_cni_spec::{Attachment, NetworkList};
use podwire_kernel::{Host, Netns};
use serde_json::Value;

use crate::cache::in_version;
use crate::invoke::{Call, Step};
use crate::{Error, Identity, Record, Result, Runtime};

/// How far an ADD got, and why not farther.
struct Failure {
    /// How many plugins were started.
    started: usize,
    /// What the last one that succeeded returned.
    result: Option<Value>,
    error: Error,
}

impl Runtime<'_> {
    /// Attaches a container to a network.
    ///
    /// If it fails, the plugins that ran, the failing one included, are told to take back what they did, and
    /// nothing is remembered. The error has the failing plugin's code, and what could not be taken back. Only when
    /// the container is attached already, by its record, nothing is taken back: it may be running. (Not so if the interface of
    /// which the record tells is not there.)
    ///
    /// If an earlier ADD of the same container was interrupted, what it left is removed first.
    pub fn add(&self, list: &NetworkList, identity: &Identity) -> Result<Attachment> {
        let chain = self.chain(list, Command::Add)?;
        let path = self.cache.path(&list.name, &identity.container, &identity.ifname)?;
        let mut record = Record::new(path, list, identity);
        let earlier = self.prepare(list, identity)?;
        if earlier.is_none() {
            self.cache.write(&record)?;
        }
        let failure = match self.forward(list, identity, &chain) {
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
            None => self.take_back(list, identity, &record, *failure),
        })
    }

    /// Looks at what is remembered of this container. Returns the record of an ADD that succeeded, unless nothing came of it that
    /// is still there.
    fn prepare(&self, list: &NetworkList, identity: &Identity) -> Result<Option<PathBuf>> {
        match self.cache.find(&list.name, identity) {
            Ok(Some(record)) if record.result.is_some() && !is_stale(&record, identity) => {
                Ok(Some(record.path))
            }
            Ok(Some(record)) => {
                // If this fails, so will a plugin's ADD, with a better text.
                let _ = self.withdraw(list, &record);
                Ok(None)
            }
            Err(error @ Error::Foreign { .. }) => Err(error),
            // What cannot be read has nothing to say.
            Ok(None) | Err(_) => Ok(None),
        }
    }

    fn forward(
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
                        Error::Cni(error) => step.misread(list, error),
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

    fn take_back(&self, list: &NetworkList, identity: &Identity, record: &Record, failure: Failure) -> Error {
        let Failure { started, result, error } = failure;
        let mut errors = self.backward(list, &list.plugins[..started], identity, result.as_ref());
        if errors.is_empty() {
            errors.extend(self.cache.remove(&record.path).err());
        }
        match errors.is_empty() {
            true => error,
            // The record stays: by it the rest can be removed later.
            false => Error::Undo { source: Box::new(error), undo: errors },
        }
    }
}

/// Whether it can be seen that nothing of what the record tells is there: one of before a reboot, say, whose namespace was made again under its
/// name. Then the interface that was made in that namespace is missing.
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
