//! Elements with an owner: added in one transaction, deleted only if they belong to the owner.

use std::borrow::Cow;
use std::collections::HashSet;

use podwire_netlink::nft::{self, Element, Retry, Table, Transaction, Value};
use podwire_netlink::Socket;

use crate::error::{Error, Result};
use crate::owner::Owner;

/// How often an insertion is tried when other programs change the same elements.
const ATTEMPTS: usize = 100;
/// How many elements one transaction reads and deletes.
const BATCH: usize = 64;

/// An element that should be in a set.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// The set or map.
    pub set: Cow<'static, str>,
    /// The element.
    pub element: Element,
    /// Whether several pods share it, so that it may exist already.
    pub shared: bool,
}

impl Entry {
    /// An element of one owner.
    pub fn own(set: impl Into<Cow<'static, str>>, element: Element) -> Entry {
        Entry { set: set.into(), element, shared: false }
    }

    /// An element that pods share.
    pub fn shared(set: impl Into<Cow<'static, str>>, element: Element) -> Entry {
        Entry { set: set.into(), element, shared: true }
    }
}

/// What to do about an existing element with the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Existing {
    /// Keep it: it is the desired one.
    Keep,
    /// Replace it: its owner no longer exists.
    Replace,
    /// There is none.
    Absent,
}

/// Elements to add to one table.
pub(super) struct Insertion<'a> {
    /// The table.
    pub table: &'a Table,
    /// The elements.
    pub entries: Vec<Entry>,
    /// What to create if something is missing: the smallest part first, the whole skeleton last. The last one must have
    /// the same result whether or not parts exist.
    pub skeletons: &'a [&'a dyn Fn(&mut Transaction)],
    /// Decides about an existing element with the same key and another comment or other data.
    pub on_conflict: &'a dyn Fn(&Entry, &Element) -> Result<Existing>,
}

impl Insertion<'_> {
    /// Adds the elements. Usually that is one message each, in one transaction. Only if the kernel answers that
    /// something is missing or exists, the existing elements are read.
    pub fn commit(&self, nft: &mut Socket) -> Result<()> {
        let mut found = vec![Existing::Absent; self.entries.len()];
        // A failed transaction costs an RCU grace period: check first that the sets exist.
        let is_prepared = match self.is_prepared(nft) {
            Err(_) if !nft::is_supported(nft)? => return Err(Error::NoNfTables),
            known => known?,
        };
        let mut stage = if is_prepared { 0 } else { self.skeletons.len() };
        let mut last_error = None;
        for _ in 0..ATTEMPTS {
            let change = self.change(stage, &found);
            if change.is_empty() {
                return Ok(());
            }
            let Err(error) = change.commit(nft) else { return Ok(()) };
            let current =
                if error.is_exists() || error.is_gone() { self.read_existing(nft)? } else { found.clone() };
            if error.is_exists() || current != found {
                found = current;
            } else if error.is_gone() && stage < self.skeletons.len() {
                // Without the table only the whole skeleton helps.
                stage = if nft::has_table(nft, self.table)? { stage + 1 } else { self.skeletons.len() };
            } else {
                return Err(error.into());
            }
            last_error = Some(error);
        }
        Err(last_error.unwrap_or(podwire_netlink::Error::Contended { attempts: ATTEMPTS }).into())
    }

    fn is_prepared(&self, nft: &mut Socket) -> Result<bool> {
        let sets: HashSet<&str> = self.entries.iter().map(|entry| entry.set.as_ref()).collect();
        for set in sets {
            if !nft::has_set(nft, self.table, set)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn change(&self, stage: usize, found: &[Existing]) -> Transaction {
        let mut change = Transaction::new();
        if found.iter().all(|found| *found == Existing::Keep) {
            return change;
        }
        if let Some(skeleton) = stage.checked_sub(1).and_then(|n| self.skeletons.get(n)) {
            skeleton(&mut change);
        }
        for (Entry { set, element, shared }, found) in self.entries.iter().zip(found) {
            match found {
                Existing::Keep => continue,
                Existing::Replace => change.delete_element(self.table, set, element),
                Existing::Absent => {}
            }
            if *shared {
                change.add_element(self.table, set, element);
            } else {
                change.create_element(self.table, set, element);
            }
        }
        change
    }

    /// The existing elements with our keys.
    fn read_existing(&self, nft: &mut Socket) -> Result<Vec<Existing>> {
        let read = |entry: &Entry| match nft::get_element(nft, self.table, &entry.set, &entry.element.key)? {
            None => Ok(Existing::Absent),
            Some(_) if entry.shared => Ok(Existing::Keep),
            Some(other) if other == entry.element => Ok(Existing::Keep),
            Some(other) => (self.on_conflict)(entry, &other),
        };
        self.entries.iter().map(read).collect()
    }
}

/// The missing parts of a skeleton, as texts.
pub(super) fn absent(nft: &mut Socket, skeleton: &dyn Fn(&mut Transaction)) -> Result<Vec<String>> {
    let mut whole = Transaction::new();
    skeleton(&mut whole);
    Ok(whole.absent(nft)?)
}

/// Creates a skeleton, of which parts may exist.
pub(super) fn prepare(nft: &mut Socket, skeleton: &dyn Fn(&mut Transaction)) -> Result<()> {
    let mut whole = Transaction::new();
    skeleton(&mut whole);
    Ok(whole.commit(nft)?)
}

/// For keys that only one existing pod can have: another owner no longer exists.
pub(super) fn replace(_: &Entry, _: &Element) -> Result<Existing> {
    Ok(Existing::Replace)
}

/// For keys that are a pod's address: another owner no longer exists, unless two networks overlap. Then its element
/// stays.
pub(super) fn replace_unless_running<'a>(
    owner: &'a Owner,
    is_running: &'a dyn Fn(&str) -> bool,
) -> impl Fn(&Entry, &Element) -> Result<Existing> + 'a {
    move |entry, other| match &other.comment {
        Some(holder) if !owner.matches(holder) && is_running(holder) => {
            Err(Error::AddressTaken { address: entry.element.key.to_string(), holder: holder.clone() })
        }
        _ => Ok(Existing::Replace),
    }
}

/// Whether the comment of the element names this owner.
pub(super) fn is_owned_by(element: &Element, owner: &Owner) -> bool {
    element.comment.as_deref().is_some_and(|comment| owner.matches(comment))
}

/// A predicate for the comments of owners in the network that are not in `keep`.
pub(super) fn orphans<'a>(network: &'a str, keep: &[Owner]) -> impl Fn(&str) -> bool + 'a {
    let keep: HashSet<String> = keep.iter().map(Owner::comment).collect();
    move |comment| Owner::is_in(comment, network) && !keep.contains(comment)
}

/// Deletes the elements with these keys for which `is_ours` holds; returns whether there were any. If another program
/// changes the rules meanwhile, the elements are read again.
pub(super) fn remove(
    nft: &mut Socket,
    table: &Table,
    keys: &[(impl AsRef<str>, Value)],
    is_ours: &dyn Fn(&Element) -> bool,
) -> Result<bool> {
    let retry = Retry { at_generation: true, is_race: podwire_netlink::Error::is_gone };
    retry.commit(nft, |nft, change| {
        for (set, key) in keys {
            if let Some(element) = nft::get_element(nft, table, set.as_ref(), key)?.filter(is_ours) {
                change.delete_element(table, set.as_ref(), &element);
            }
        }
        Ok(!change.is_empty())
    })
}

/// Reads whole sets and deletes the elements with a matching comment; returns their number.
pub(super) fn remove_matching(
    nft: &mut Socket,
    table: &Table,
    sets: &[impl AsRef<str>],
    matches: &dyn Fn(&str) -> bool,
) -> Result<usize> {
    let is_ours = |element: &Element| element.comment.as_deref().is_some_and(matches);
    let mut keys = Vec::new();
    for set in sets {
        let elements = nft::list_elements(nft, table, set.as_ref())?;
        keys.extend(elements.into_iter().filter(&is_ours).map(|element| (set.as_ref(), element.key)));
    }
    for some in keys.chunks(BATCH) {
        remove(nft, table, some, &is_ours)?;
    }
    Ok(keys.len())
}
