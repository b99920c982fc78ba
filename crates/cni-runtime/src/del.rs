//! DEL: runs all plugins of a network backwards, past failures.

use podwire_cni_plugin::Command;
use podwire_cni_spec::{NetworkList, PluginConfig};
use serde_json::Value;

use crate::invoke::Call;
use crate::{Error, Identity, Record, Result, Runtime};

impl Runtime<'_> {
    /// Detaches a container from a network.
    ///
    /// It can be called twice, after a failed ADD, and when the namespace is gone ([`Identity::netns`] not set). Missing
    /// arguments and capability arguments are those of the ADD. A failing plugin does not prevent the others; all errors are
    /// returned, and the record stays for the next attempt.
    pub fn del(&self, list: &NetworkList, identity: &Identity) -> Result<()> {
        let path = self.cache.path(&list.name, &identity.container, &identity.ifname)?;
        let (record, ours) = match self.cache.find(&list.name, identity) {
            Ok(record) => (record, true),
            Err(Error::Foreign { .. }) => (None, false),
            // Incomplete, empty or of a newer format: a record must not prevent the cleanup.
            Err(_) => (None, true),
        };
        let identity = Record::complete(record.as_ref(), identity);
        let result = record.and_then(|record| record.result_in(list.version).unwrap_or_default());
        Error::all(self.run_del(list, &list.plugins, &identity, result.as_ref()))?;
        if ours {
            self.cache.remove(&path)?;
        }
        Ok(())
    }

    /// Detaches a container by its names alone, with the recorded config. Returns false if there is no record.
    pub fn del_cached(&self, network: &str, container: &str, ifname: &str) -> Result<bool> {
        let identity = Identity::new(container, ifname)?;
        let Some(record) = self.cache.find(network, &identity)? else { return Ok(false) };
        self.del(&record.network_list()?, &record.identity()?)?;
        Ok(true)
    }

    /// Removes the record of an attachment whose DEL cannot succeed, and nothing else. Returns false if there is no
    /// record. What the plugins created is found by its owner.
    pub fn forget(&self, network: &str, identity: &Identity) -> Result<bool> {
        let path = self.cache.path(network, &identity.container, &identity.ifname)?;
        match self.cache.find(network, identity) {
            Ok(None) => return Ok(false),
            Err(error @ Error::Foreign { .. }) => return Err(error),
            // A record that cannot be read is removed too.
            Ok(Some(_)) | Err(_) => {}
        }
        self.cache.remove(&path).map(|()| true)
    }

    /// Why DEL with the config of a record cannot succeed: the config is invalid, or one of its plugins is not installed or
    /// does not support its version. `None` if only an attempt can tell.
    pub fn find_del_obstacle(&self, record: &Record) -> Option<Error> {
        let list = match record.identity().and_then(|_| record.network_list()) {
            Ok(list) => list,
            Err(error) => return Some(error),
        };
        if let Some(missing) = list.plugins.iter().find_map(|plugin| self.find_missing(&list, plugin)) {
            return Some(missing);
        }
        let chain: Result<Vec<_>> =
            list.plugins.iter().map(|plugin| self.step(&list, plugin, Command::Del)).collect();
        chain.and_then(|chain| self.validate_chain(&list, &chain)).err()
    }

    /// Detaches the attachment of a record, with the config of its ADD: the network's config may lack a plugin by now, and that
    /// plugin must run DEL too. If such a plugin is no longer installed, with the current config.
    pub(crate) fn delete_recorded(&self, list: &NetworkList, record: &Record) -> Result<()> {
        let identity = record.identity()?;
        match record.network_list() {
            Ok(old) if old.bytes != list.bytes => {
                let is_missing = || old.plugins.iter().any(|plugin| !self.can_delete(&old, plugin));
                self.del(&old, &identity).or_else(|first| {
                    if !is_missing() {
                        return Err(first);
                    }
                    self.del(list, &identity).map_err(|second| Error::Several(vec![second, first]))
                })
            }
            _ => self.del(list, &identity),
        }
    }

    /// Runs DEL of these plugins, the last one first. Returns all errors.
    pub(crate) fn run_del(
        &self,
        list: &NetworkList,
        plugins: &[PluginConfig],
        identity: &Identity,
        result: Option<&Value>,
    ) -> Vec<Error> {
        let prev = result.filter(|_| list.version.has_prev_result_on_del());
        let del = |plugin: &PluginConfig| -> Result<()> {
            let step = self.step(list, plugin, Command::Del)?;
            let config = plugin.request(list, prev, &identity.capabilities);
            let deadline = self.deadline();
            self.call(list, &step, Call { command: Command::Del, identity: Some(identity), config, deadline })
                .map(drop)
        };
        plugins.iter().rev().filter_map(|plugin| del(plugin).err()).collect()
    }
}
