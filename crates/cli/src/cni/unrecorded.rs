//! Attachments that are in the plugins' ledger and not in the runtime's records.

use std::collections::BTreeMap;
use std::time::Instant;

use podwire_cni_plugin::ledger::LedgerFile;
use podwire_cni_plugin::{delete_recorded_unless_changed, Error, Result};
use podwire_cni_runtime::Record;
use podwire_cni_spec::{ContainerId, IfName};

use super::runtime_flags::registry;

/// An attachment without a record.
#[derive(Debug)]
pub(super) struct Unrecorded {
    pub(super) container: String,
    pub(super) ifname: String,
    files: Vec<LedgerFile>,
}

impl Unrecorded {
    /// The attachments of `network` that are not in `valid` and have no record. An attachment with a locked ledger file
    /// is never among them: an ADD or another deletion works on it.
    pub(super) fn among(
        files: Vec<LedgerFile>,
        records: &[Record],
        network: &str,
        valid: &[(ContainerId, IfName)],
    ) -> Vec<Unrecorded> {
        let mut owners: BTreeMap<(String, String), Vec<LedgerFile>> = BTreeMap::new();
        for file in files {
            if let Some(entry) = file.entries.first().filter(|entry| entry.network == network) {
                owners.entry((entry.container.clone(), entry.ifname.clone())).or_default().push(file);
            }
        }
        let kept = |container: &str, ifname: &str| {
            let same = |record: &Record| {
                (&*record.network, &*record.container, &*record.ifname) == (network, container, ifname)
            };
            valid.iter().any(|(other, interface)| **other == *container && **interface == *ifname)
                || records.iter().any(same)
        };
        let stale = owners.into_iter().filter(|((container, ifname), files)| {
            !kept(container, ifname) && !files.iter().any(|file| file.is_locked)
        });
        stale.map(|((container, ifname), files)| Unrecorded { container, ifname, files }).collect()
    }

    /// Whether all its ledger files are removed.
    pub(super) fn is_gone(&self) -> bool {
        !self.files.iter().any(|file| file.path.exists())
    }

    /// Runs DEL of each plugin that has a ledger file and has not removed it itself. Continues after failures.
    pub(super) fn delete(&self, deadline: Option<Instant>) -> Result<()> {
        let mut errors = Vec::new();
        for file in self.files.iter().rev() {
            let name = file.entries.first().map_or("", |entry| &entry.plugin);
            errors.extend(match registry().find(name) {
                Some(plugin) => delete_recorded_unless_changed(plugin, file, registry(), deadline).err(),
                None => {
                    let text = format!("{}: this program does not have the plugin", file.path.display());
                    Some(podwire_cni_spec::Error::internal(text).into())
                }
            });
        }
        Error::all(errors)
    }
}
