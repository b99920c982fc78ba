//! GC: removes attachments that are no longer valid.

use std::collections::HashSet;
use std::path::PathBuf;

use podwire_cni_plugin::Command;
use podwire_cni_spec::{ContainerId, IfName, NetworkList, PluginConfig};

use crate::invoke::Call;
use crate::{Error, Record, Result, Runtime};

/// The outcome of a GC.
#[derive(Debug, Default)]
pub struct GcReport {
    /// The records of the removed attachments. Plugins may have removed more.
    pub removed: Vec<Record>,
    /// The errors. Everything else was done.
    pub errors: Vec<Error>,
}

impl GcReport {
    /// An error if anything failed.
    pub fn done(self) -> Result<Vec<Record>> {
        Error::all(self.errors)?;
        Ok(self.removed)
    }
}

impl Runtime<'_> {
    /// Removes everything of a network except the `valid` attachments: first those with a record, by DEL; then, from version
    /// 1.1.0 on, what the plugins find by GC. It goes on past errors.
    ///
    /// `valid` must contain containers whose ADD is in progress; [`gc_of`](Runtime::gc_of) allows ADDs meanwhile.
    pub fn gc(&self, list: &NetworkList, valid: &[(ContainerId, IfName)]) -> GcReport {
        self.gc_of(list, self.cache.list().records, valid)
    }

    /// The same, with the `records` that existed when `valid` was computed. A container whose record is newer is kept.
    pub fn gc_of(
        &self,
        list: &NetworkList,
        records: Vec<Record>,
        valid: &[(ContainerId, IfName)],
    ) -> GcReport {
        let mut report = GcReport::default();
        if list.disable_gc {
            return report;
        }
        let own = |record: &&Record| record.network == list.name.as_str();
        let mut known: HashSet<_> = records.iter().filter(own).map(|record| record.path.clone()).collect();
        let kept: HashSet<_> =
            valid.iter().map(|(container, ifname)| (container.as_str(), ifname.as_str())).collect();
        let is_kept = |record: &Record| kept.contains(&(&*record.container, &*record.ifname));
        for record in records.into_iter().filter(|record| own(&record) && !is_kept(record)) {
            if self.has_changed(&record) {
                known.remove(&record.path);
                continue;
            }
            match self.delete_recorded(list, &record) {
                Ok(()) => {
                    // A record at this path from now on is of a new attachment.
                    known.remove(&record.path);
                    report.removed.push(record);
                }
                Err(error) => report.errors.push(error),
            }
        }
        report.errors.extend(self.cache.remove_drafts().err());
        if list.version.has_gc() {
            for plugin in &list.plugins {
                let valid = [valid, &self.added_since(list, &known)].concat();
                report.errors.extend(self.gc_plugin(list, plugin, &valid).err());
            }
        }
        report
    }

    /// Whether a record was replaced or removed: a container may be restarted under its id. An unreadable record is being
    /// written by a new ADD.
    pub fn has_changed(&self, record: &Record) -> bool {
        let Ok(identity) = record.identity() else { return false };
        let now = self.cache.find(&record.network, &identity);
        !matches!(now, Ok(Some(now)) if now == *record)
    }

    /// The attachments of a network whose records are not among these files.
    fn added_since(&self, list: &NetworkList, known: &HashSet<PathBuf>) -> Vec<(ContainerId, IfName)> {
        let records = self.cache.list().records.into_iter();
        let new = records.filter(|one| one.network == list.name.as_str() && !known.contains(&one.path));
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
