//! Attachments that are in the plugins' ledger and not in the runtime's records.

use std::collections::BTreeMap;
use std::time::Instant;

use podwire_cni_plugin::ledger::Account;
use podwire_cni_plugin::{delete_recorded_unless_changed, Error, Result};
use podwire_cni_runtime::Record;
use podwire_cni_spec::{ContainerId, IfName};

use super::runtime_flags::registry;

/// An attachment without a record.
#[derive(Debug)]
pub(super) struct Unrecorded {
    pub(super) container: String,
    pub(super) ifname: String,
    accounts: Vec<Account>,
}

impl Unrecorded {
    /// The attachments of `network` that are not in `valid` and have no record. An attachment that an ADD is working on
    /// is never among them.
    pub(super) fn among(
        accounts: Vec<Account>,
        records: &[Record],
        network: &str,
        valid: &[(ContainerId, IfName)],
    ) -> Vec<Unrecorded> {
        let mut owners: BTreeMap<(String, String), Vec<Account>> = BTreeMap::new();
        for account in accounts {
            if let Some(entry) = account.entries.first().filter(|entry| entry.network == network) {
                owners.entry((entry.container.clone(), entry.ifname.clone())).or_default().push(account);
            }
        }
        let kept = |container: &str, ifname: &str| {
            let same = |record: &Record| {
                (&*record.network, &*record.container, &*record.ifname) == (network, container, ifname)
            };
            valid.iter().any(|(other, interface)| **other == *container && **interface == *ifname)
                || records.iter().any(same)
        };
        let stale = owners.into_iter().filter(|((container, ifname), accounts)| {
            !kept(container, ifname) && !accounts.iter().any(|account| account.busy)
        });
        stale.map(|((container, ifname), accounts)| Unrecorded { container, ifname, accounts }).collect()
    }

    /// Whether the ledger has no file of it any more.
    pub(super) fn is_gone(&self) -> bool {
        !self.accounts.iter().any(|account| account.file.exists())
    }

    /// Runs DEL of each plugin that has a ledger file and has not removed it itself. Continues after failures.
    pub(super) fn delete(&self, deadline: Option<Instant>) -> Result<()> {
        let mut errors = Vec::new();
        for account in self.accounts.iter().rev() {
            let name = account.entries.first().map_or("", |entry| &entry.plugin);
            errors.extend(match registry().find(name) {
                Some(plugin) => delete_recorded_unless_changed(plugin, account, registry(), deadline).err(),
                None => {
                    let text = format!("{}: this program does not have the plugin", account.file.display());
                    Some(podwire_cni_spec::Error::internal(text).into())
                }
            });
        }
        Error::all(errors)
    }
}
