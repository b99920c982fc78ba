//! The attachments of this node, from the ledger and the runtimes' records, and whether their pods still exist.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::time::{Duration, SystemTime};

use podwire_cni_plugin::ledger::{self, LedgerFile};
use podwire_cni_runtime::{Problem, Record};
use podwire_kernel::Owner;

use crate::Node;

/// How long an object may exist before its creator has recorded it.
const GRACE: Duration = Duration::from_secs(60);

/// Whether a pod exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodState {
    /// Its network namespace exists.
    Running,
    /// Its network namespace is gone.
    Gone,
    /// An ADD is in progress.
    Attaching,
    /// Neither the ledger nor a record names its namespace.
    Unknown,
}

/// An attachment of the ledger or of a record.
#[derive(Debug)]
pub struct KnownAttachment {
    /// The owner of its objects.
    pub owner: Owner,
    /// Its files in the ledger, one for each plugin.
    pub ledger_files: Vec<LedgerFile>,
    /// The runtime's record.
    pub record: Option<Record>,
    /// Whether its pod exists.
    pub state: PodState,
}

impl KnownAttachment {
    /// Whether its last ADD did not finish. An earlier unfinished ADD does not count: its objects are removed with the pod.
    pub(crate) fn is_unfinished(&self) -> bool {
        let mut last = self.ledger_files.iter().filter_map(|file| file.entries.last());
        let unfinished = last.any(|entry| entry.result.is_none() && !matches!(entry.find_netns(), Ok(None)));
        let recorded = self.record.as_ref();
        unfinished || recorded.is_some_and(|record| record.result.is_none() && is_settled(&record.path))
    }

    fn find_state(&self) -> PodState {
        if self.ledger_files.iter().any(|file| file.is_locked) {
            return PodState::Attaching;
        }
        let entries = || self.ledger_files.iter().flat_map(|file| &file.entries);
        let written = entries().filter(|entry| !entry.netns.is_empty()).map(|entry| entry.find_netns());
        let recorded = self.record.iter().filter_map(|record| record.netns.as_deref());
        let recorded = recorded.map(|path| ledger::find_recorded_netns(path, entries()));
        let mut state = PodState::Unknown;
        for found in written.chain(recorded) {
            match found {
                Ok(None) => state = PodState::Gone,
                // A namespace that cannot be opened may still exist.
                Ok(Some(_)) | Err(_) => return PodState::Running,
            }
        }
        state
    }
}

/// All attachments of a node.
#[derive(Debug)]
pub struct Inventory {
    /// Sorted by owner.
    pub attachments: Vec<KnownAttachment>,
    /// Ledger files without an entry, left by a crash.
    pub empty: Vec<LedgerFile>,
    /// Records that cannot be read.
    pub unreadable: Vec<Problem>,
    comments: HashSet<String>,
}

impl Inventory {
    pub(crate) fn collect(node: &Node<'_>) -> Inventory {
        let mut owners: BTreeMap<Owner, KnownAttachment> = BTreeMap::new();
        let mut empty = Vec::new();
        for file in ledger::all() {
            match file.entries.first().map(ledger::Entry::owner) {
                Some(owner) => entry(&mut owners, &owner).ledger_files.push(file),
                None if file.is_locked => {}
                None => empty.push(file),
            }
        }
        let listing = node.cache.list();
        for record in listing.records {
            let owner = Owner::new(&*record.network, &*record.container, &*record.ifname);
            entry(&mut owners, &owner).record = Some(record);
        }
        let mut attachments: Vec<KnownAttachment> = owners.into_values().collect();
        attachments.iter_mut().for_each(|one| one.state = one.find_state());
        let comments = attachments.iter().map(|one| one.owner.comment()).collect();
        Inventory { attachments, empty, unreadable: listing.problems, comments }
    }

    /// Whether an object with this comment belongs to a known attachment.
    pub(crate) fn contains(&self, comment: &str) -> bool {
        self.comments.contains(comment)
    }

    /// The attachments of a container in a network.
    pub(crate) fn of_container<'c>(
        &'c self,
        network: &'c str,
        container: &'c str,
    ) -> impl Iterator<Item = &'c KnownAttachment> {
        self.attachments
            .iter()
            .filter(move |one| one.owner.network == network && one.owner.container == container)
    }
}

fn entry<'m>(owners: &'m mut BTreeMap<Owner, KnownAttachment>, owner: &Owner) -> &'m mut KnownAttachment {
    let unknown = || KnownAttachment {
        owner: owner.clone(),
        ledger_files: Vec::new(),
        record: None,
        state: PodState::Unknown,
    };
    owners.entry(owner.clone()).or_insert_with(unknown)
}

/// Whether a file is too old to belong to an ADD in progress.
pub(crate) fn is_settled(file: &Path) -> bool {
    let changed = std::fs::metadata(file).and_then(|metadata| metadata.modified());
    changed.is_ok_and(|changed| {
        // A time in the future comes from a wrong clock, so the file was not written just now.
        SystemTime::now().duration_since(changed).map_or(true, |age| age >= GRACE)
    })
}
