//! Who is attached on this node, and who of them lives.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::time::{Duration, SystemTime};

use podwire_cni_plugin::ledger::{self, Account};
use podwire_cni_runtime::{Problem, Record};
use podwire_kernel::Owner;

use crate::Node;

/// How long something may be there before whoever makes it has written it down.
const GRACE: Duration = Duration::from_secs(60);

/// Whether a pod is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Its namespace exists.
    Alive,
    /// Its namespace is gone.
    Dead,
    /// It is being attached right now.
    Beginning,
    /// Nobody wrote down where its namespace is.
    Unknown,
}

/// An attachment that the ledger or a record knows.
#[derive(Debug)]
pub struct Known {
    /// Whose it is.
    pub owner: Owner,
    /// What our plugins wrote down.
    pub accounts: Vec<Account>,
    /// What a runtime wrote down.
    pub record: Option<Record>,
    /// Whether its pod is there.
    pub life: Life,
}

impl Known {
    /// Whether its last ADD began and never came to its end. One before it that did not is no matter: whatever that one made goes with the pod.
    pub(crate) fn is_unfinished(&self) -> bool {
        let mut last = self.accounts.iter().filter_map(|account| account.entries.last());
        let unfinished = last.any(|entry| entry.result.is_none() && !matches!(entry.find_netns(), Ok(None)));
        let recorded = self.record.as_ref();
        unfinished || recorded.is_some_and(|record| record.result.is_none() && is_settled(&record.path))
    }

    fn judge(&self) -> Life {
        if self.accounts.iter().any(|account| account.busy) {
            return Life::Beginning;
        }
        let entries = || self.accounts.iter().flat_map(|account| &account.entries);
        let written = entries().filter(|entry| !entry.netns.is_empty()).map(|entry| entry.find_netns());
        let recorded = self.record.iter().filter_map(|record| record.netns.as_deref());
        let recorded = recorded.map(|path| ledger::find_recorded_netns(path, entries()));
        let mut life = Life::Unknown;
        for found in written.chain(recorded) {
            match found {
                Ok(None) => life = Life::Dead,
                // One that cannot be looked at is not known to be gone.
                Ok(Some(_)) | Err(_) => return Life::Alive,
            }
        }
        life
    }
}

/// All owners that are known.
#[derive(Debug)]
pub struct Census {
    /// In the order of their names.
    pub known: Vec<Known>,
    /// Accounts that tell of nothing: torn by a crash.
    pub torn: Vec<Account>,
    /// Records that cannot be read.
    pub unreadable: Vec<Problem>,
    comments: HashSet<String>,
}

impl Census {
    pub(crate) fn take(node: &Node<'_>) -> Census {
        let mut owners: BTreeMap<(String, String, String), Known> = BTreeMap::new();
        let mut torn = Vec::new();
        for account in ledger::all() {
            match account.entries.first().map(ledger::Entry::owner) {
                Some(owner) => entry(&mut owners, &owner).accounts.push(account),
                None if account.busy => {}
                None => torn.push(account),
            }
        }
        let listing = node.cache.list();
        for record in listing.records {
            let owner = Owner::new(&*record.network, &*record.container, &*record.ifname);
            entry(&mut owners, &owner).record = Some(record);
        }
        let mut known: Vec<Known> = owners.into_values().collect();
        known.iter_mut().for_each(|one| one.life = one.judge());
        let comments = known.iter().map(|one| one.owner.comment()).collect();
        Census { known, torn, unreadable: listing.problems, comments }
    }

    /// Whether elements and links with this comment belong to somebody who is known.
    pub(crate) fn knows(&self, comment: &str) -> bool {
        self.comments.contains(comment)
    }

    /// The attachments of a container in a network.
    pub(crate) fn of_container<'c>(
        &'c self,
        network: &'c str,
        container: &'c str,
    ) -> impl Iterator<Item = &'c Known> {
        self.known.iter().filter(move |one| one.owner.network == network && one.owner.container == container)
    }
}

fn entry<'m>(owners: &'m mut BTreeMap<(String, String, String), Known>, owner: &Owner) -> &'m mut Known {
    let key = (owner.network.clone(), owner.container.clone(), owner.ifname.clone());
    let unknown = || Known { owner: owner.clone(), accounts: Vec::new(), record: None, life: Life::Unknown };
    owners.entry(key).or_insert_with(unknown)
}

/// Whether a file was there long enough to be no part of an ADD that is at work now.
pub(crate) fn is_settled(file: &Path) -> bool {
    let changed = std::fs::metadata(file).and_then(|metadata| metadata.modified());
    changed.is_ok_and(|changed| {
        // A time in the future is a clock that was wrong: that cannot be just now.
        SystemTime::now().duration_since(changed).map_or(true, |age| age >= GRACE)
    })
}
