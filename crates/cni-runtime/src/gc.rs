//! GC: what belongs to no container any more goes.

use std::collections::HashSet;

use cni::{ContainerId, IfName, NetworkList, PluginConfig};
use cni_plugin::Command;

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
    /// A container that is being attached right now must be in `valid`.
    pub fn gc(&self, list: &NetworkList, valid: &[(ContainerId, IfName)]) -> Sweep {
        let mut sweep = Sweep::default();
        if list.disable_gc {
            return sweep;
        }
        let kept: HashSet<_> =
            valid.iter().map(|(container, ifname)| (container.as_str(), ifname.as_str())).collect();
        for record in self.cache.list().records {
            if record.network != list.name.as_str() || kept.contains(&(&*record.container, &*record.ifname)) {
                continue;
            }
            match self.withdraw(list, &record) {
                Ok(()) => sweep.removed.push(record),
                Err(error) => sweep.errors.push(error),
            }
        }
        sweep.errors.extend(self.cache.remove_drafts().err());
        if list.version.has_gc() {
            let gc = |plugin: &PluginConfig| self.gc_plugin(list, plugin, valid).err();
            sweep.errors.extend(list.plugins.iter().filter_map(gc));
        }
        sweep
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
