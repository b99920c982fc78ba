//! GC: what belongs to no container any more goes.

use std::collections::HashSet;
use std::path::PathBuf;

use podwire_cni_plugin::Command;
use podwire_cni_spec::{ContainerId, IfName, NetworkList, PluginConfig};

use crate::invoke::Call;
use crate::{Error, Record, Result, Runtime};

/// What a GC did.
#[derive(Debug, Default)]
pub struct Sweep {
    /// The attachments that were removed, by their records. Plugins may have found more.
    pub removed: Vec<Record>,
    /// What failed. The rest was done all the same.
    pub errors: Vec<Error>,
}

impl Sweep {
    /// An error if anything failed.
    pub fn done(self) -> Result<Vec<Record>> {
        Error::all(self.errors)?;
        Ok(self.removed)
    }
}

impl Runtime<'_> {
    /// Removes everything of a network that belongs to none of the `valid` attachments: first what is remembered,
    /// by DEL, then, from version 1.1.0 on, whatever the plugins themselves find. It goes on past errors.
    ///
    /// A container that is being attached right now must be in `valid`; for one that may be attached meanwhile there is
    /// [`gc_of`](Runtime::gc_of).
    pub fn gc(&self, list: &NetworkList, valid: &[(ContainerId, IfName)]) -> Sweep {
        self.gc_of(list, self.cache.list().records, valid)
    }

    /// The same for whoever has looked at records to tell which attachments are valid: these `records` were all that there
    /// were then. A container of which there is a record only since is kept.
    pub fn gc_of(&self, list: &NetworkList, records: Vec<Record>, valid: &[(ContainerId, IfName)]) -> Sweep {
        let mut sweep = Sweep::default();
        if list.disable_gc {
            return sweep;
        }
        let own = |record: &&Record| record.network == list.name.as_str();
        let mut judged: HashSet<_> = records.iter().filter(own).map(|record| record.path.clone()).collect();
        let kept: HashSet<_> =
            valid.iter().map(|(container, ifname)| (container.as_str(), ifname.as_str())).collect();
        let is_kept = |record: &Record| kept.contains(&(&*record.container, &*record.ifname));
        for record in records.into_iter().filter(|record| own(&record) && !is_kept(record)) {
            if self.has_changed(&record) {
                judged.remove(&record.path);
                continue;
            }
            match self.withdraw(list, &record) {
                Ok(()) => {
                    // Whoever has a record there from now on is somebody else.
                    judged.remove(&record.path);
                    sweep.removed.push(record);
                }
                Err(error) => sweep.errors.push(error),
            }
        }
        sweep.errors.extend(self.cache.remove_drafts().err());
        if list.version.has_gc() {
            for plugin in &list.plugins {
                let valid = [valid, &self.came_since(list, &judged)].concat();
                sweep.errors.extend(self.gc_plugin(list, plugin, &valid).err());
            }
        }
        sweep
    }

    /// Whether a record tells of another attachment by now, or is gone: a container may come back under its id.
    /// One that cannot be read any more is being written, by whoever is attached now.
    pub fn has_changed(&self, record: &Record) -> bool {
        let Ok(identity) = record.identity() else { return false };
        let now = self.cache.find(&record.network, &identity);
        !matches!(now, Ok(Some(now)) if now == *record)
    }

    /// The attachments of a network whose records are none of these files.
    fn came_since(&self, list: &NetworkList, judged: &HashSet<PathBuf>) -> Vec<(ContainerId, IfName)> {
        let records = self.cache.list().records.into_iter();
        let new = records.filter(|one| one.network == list.name.as_str() && !judged.contains(&one.path));
        let names = |record: Record| {
            Some((ContainerId::parse(&record.container).ok()?, IfName::parse(&record.ifname).ok()?))
        };
        new.filter_map(names).collect()
    }

    fn gc_plugin(
        &self,
        list: &NetworkList,
        plugin: &PluginConfig,
        valid: &[(ContainerId, IfName)],
    ) -> Result<()> {
        let step = self.step(list, plugin, Command::Gc)?;
        let config = plugin.gc_request(list, valid);
        let call = Call { command: Command::Gc, identity: None, config, deadline: self.deadline() };
        self.call(list, &step, call).map(drop)
    }
}
