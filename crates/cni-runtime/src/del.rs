//! DEL: the plugins of a network backwards, each of them, whatever the others say.

use podwire_cni_plugin::Command;
use podwire_cni_spec::{NetworkList, PluginConfig};
use serde_json::Value;

use crate::invoke::Call;
use crate::{Error, Identity, Record, Result, Runtime};

impl Runtime<'_> {
    /// Detaches a container from a network.
    ///
    /// It may come twice, after an ADD that failed, and when the namespace is gone ([`Identity::netns`] not set).
    /// Arguments and capability arguments that are not given are those of the ADD. A plugin that fails does not
    /// keep the others from being told; all errors are returned, and what is remembered stays for the next try.
    pub fn del(&self, list: &NetworkList, identity: &Identity) -> Result<()> {
        let path = self.cache.path(&list.name, &identity.container, &identity.ifname)?;
        let (record, ours) = match self.cache.find(&list.name, identity) {
            Ok(record) => (record, true),
            Err(Error::Foreign { .. }) => (None, false),
            // Torn, empty, from the future: a record must never keep a dead container's network alive.
            Err(_) => (None, true),
        };
        let identity = identity.clone().completed(record.as_ref());
        let result = record.and_then(|record| record.result_in(list.version).unwrap_or_default());
        Error::all(self.backward(list, &list.plugins, &identity, result.as_ref()))?;
        match ours {
            true => self.cache.remove(&path),
            false => Ok(()),
        }
    }

    /// Detaches a container of which only the names are known, by the config that is remembered. Returns whether
    /// anything is.
    pub fn del_cached(&self, network: &str, container: &str, ifname: &str) -> Result<bool> {
        let identity = Identity::new(container, ifname)?;
        let Some(record) = self.cache.find(network, &identity)? else { return Ok(false) };
        self.del(&record.network_list()?, &record.identity()?)?;
        Ok(true)
    }

    /// Detaches what a record tells of, by the config that it was attached with: the network may have lost a
    /// plugin since, and nobody else would tell that one. If such a one is not installed any more, by the config of today. What
    /// fails otherwise may succeed next time.
    pub(crate) fn withdraw(&self, list: &NetworkList, record: &Record) -> Result<()> {
        let identity = record.identity()?;
        match record.network_list() {
            Ok(old) if old.bytes != list.bytes => {
                let is_missing = || old.plugins.iter().any(|plugin| !self.can_delete(&old, plugin));
                self.del(&old, &identity).or_else(|first| match is_missing() {
                    true => self.del(list, &identity).map_err(|second| Error::Several(vec![second, first])),
                    false => Err(first),
                })
            }
            _ => self.del(list, &identity),
        }
    }

    /// Tells these plugins to take back what they did, the last one first. Returns everything that failed.
    pub(crate) fn backward(
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
