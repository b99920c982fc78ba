//! Elements with an owner: added in one transaction, deleted only by whose they are.

use std::borrow::Cow;
use std::collections::HashSet;

use podwire_netlink::nft::{self, Element, Table, Transaction, Value};
use podwire_netlink::Socket;

use super::NO_NF_TABLES;
use crate::owner::Owner;
use crate::{Error, Result};

/// How often a change is tried again because somebody else changed the same thing at the same time.
pub(super) const ATTEMPTS: usize = 100;
/// How many elements are looked at and deleted together.
const AT_ONCE: usize = 64;

/// An element that should be in a set.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// The set or map.
    pub set: Cow<'static, str>,
    /// The element.
    pub element: Element,
    /// Whether it is of several pods together, and may be there already.
    pub shared: bool,
}

impl Entry {
    /// An element of one owner.
    pub fn own(set: impl Into<Cow<'static, str>>, element: Element) -> Entry {
        Entry { set: set.into(), element, shared: false }
    }

    /// An element that pods have in common.
    pub fn shared(set: impl Into<Cow<'static, str>>, element: Element) -> Entry {
        Entry { set: set.into(), element, shared: true }
    }
}

/// What to do about an element that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It is the one we want.
    Good,
    /// Nobody needs it any more: ours takes its place.
    Stale,
    /// There is none.
    Missing,
}

/// Elements to be added to one table.
pub(super) struct Plan<'a> {
    /// The table.
    pub table: &'a Table,
    /// The elements.
    pub entries: Vec<Entry>,
    /// What to make if something is missing: the smallest thing first, the whole skeleton last. The last one
    /// must be the same whether or not parts are there.
    pub skeletons: &'a [&'a dyn Fn(&mut Transaction)],
    /// Decides about an element with the key of one of ours that has another comment or other data.
    pub rival: &'a dyn Fn(&Entry, &Element) -> Result<Found>,
}

impl Plan<'_> {
    /// Adds the elements. In the usual case that is one message each, in one transaction; only when the
    /// kernel says that something is missing, or there already, it is looked at what.
    pub fn carry_out(&self, nft: &mut Socket) -> Result<()> {
        let mut found = vec![Found::Missing; self.entries.len()];
        // A transaction that fails costs the kernel a grace period: look first whether there is what it needs.
        let is_prepared = match self.is_prepared(nft) {
            Err(_) if !nft::is_supported(nft)? => return Err(Error::Other(NO_NF_TABLES.into())),
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
            let there = if error.is_exists() || error.is_gone() { self.look(nft)? } else { found.clone() };
            if error.is_exists() || there != found {
                found = there;
            } else if error.is_gone() && stage < self.skeletons.len() {
                // Without the table nothing less than the whole will do.
                stage = if nft::has_table(nft, self.table)? { stage + 1 } else { self.skeletons.len() };
            } else {
                return Err(error.into());
            }
            last_error = Some(error);
        }
        Err(last_error.map_or_else(busy, Error::from))
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

    fn change(&self, stage: usize, found: &[Found]) -> Transaction {
        let mut change = Transaction::new();
        if found.iter().all(|found| *found == Found::Good) {
            return change;
        }
        if let Some(skeleton) = stage.checked_sub(1).and_then(|n| self.skeletons.get(n)) {
            skeleton(&mut change);
        }
        for (Entry { set, element, shared }, found) in self.entries.iter().zip(found) {
            match found {
                Found::Good => continue,
                Found::Stale => change.delete_element(self.table, set, element),
                Found::Missing => {}
            }
            if *shared {
                change.add_element(self.table, set, element);
            } else {
                change.create_element(self.table, set, element);
            }
        }
        change
    }

    /// What is there instead of our elements.
    fn look(&self, nft: &mut Socket) -> Result<Vec<Found>> {
        let look = |entry: &Entry| match nft::get_element(nft, self.table, &entry.set, &entry.element.key)? {
            None => Ok(Found::Missing),
            Some(_) if entry.shared => Ok(Found::Good),
            Some(there) if there == entry.element => Ok(Found::Good),
            Some(there) => (self.rival)(entry, &there),
        };
        self.entries.iter().map(look).collect()
    }
}

/// What of a skeleton is not there, in words.
pub(super) fn absent(nft: &mut Socket, skeleton: &dyn Fn(&mut Transaction)) -> Result<Vec<String>> {
    let mut whole = Transaction::new();
    skeleton(&mut whole);
    Ok(whole.absent(nft)?)
}

/// Makes a skeleton again, of which parts may be there.
pub(super) fn prepare(nft: &mut Socket, skeleton: &dyn Fn(&mut Transaction)) -> Result<()> {
    let mut whole = Transaction::new();
    skeleton(&mut whole);
    Ok(whole.commit(nft)?)
}

/// For keys that only one living pod can have, such as its address: whoever else has it is dead.
pub(super) fn replace(_: &Entry, _: &Element) -> Result<Found> {
    Ok(Found::Stale)
}

/// Whether the element says that it is this owner's.
pub(super) fn is_of(element: &Element, owner: &Owner) -> bool {
    element.comment.as_deref().is_some_and(|comment| owner.matches(comment))
}

/// Whether a comment is that of somebody in the network who is not among those to keep.
pub(super) fn strays<'a>(network: &'a str, keep: &[Owner]) -> impl Fn(&str) -> bool + 'a {
    let keep: HashSet<String> = keep.iter().map(Owner::comment).collect();
    move |comment| Owner::is_in(comment, network) && !keep.contains(comment)
}

/// Deletes those of the elements with these keys that are `ours`; says whether there were any. An element
/// that changes hands while it is looked at is looked at again.
pub(super) fn remove(
    nft: &mut Socket,
    table: &Table,
    keys: &[(impl AsRef<str>, Value)],
    ours: &dyn Fn(&Element) -> bool,
) -> Result<bool> {
    for _ in 0..ATTEMPTS {
        let mut change = Transaction::at_generation(nft::generation(nft)?);
        for (set, key) in keys {
            if let Some(element) = nft::get_element(nft, table, set.as_ref(), key)?.filter(ours) {
                change.delete_element(table, set.as_ref(), &element);
            }
        }
        if change.is_empty() {
            return Ok(false);
        }
        match change.commit(nft) {
            Ok(()) => return Ok(true),
            Err(error) if nft::changed_meanwhile(&error) || error.is_gone() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(busy())
}

/// Reads whole sets and deletes the elements whose comment is `doomed`; says how many there were.
pub(super) fn sweep(
    nft: &mut Socket,
    table: &Table,
    sets: &[impl AsRef<str>],
    doomed: &dyn Fn(&str) -> bool,
) -> Result<usize> {
    let ours = |element: &Element| element.comment.as_deref().is_some_and(doomed);
    let mut keys = Vec::new();
    for set in sets {
        let elements = nft::list_elements(nft, table, set.as_ref())?;
        keys.extend(elements.into_iter().filter(&ours).map(|element| (set.as_ref(), element.key)));
    }
    for some in keys.chunks(AT_ONCE) {
        remove(nft, table, some, &ours)?;
    }
    Ok(keys.len())
}

pub(super) fn busy() -> Error {
    Error::Other(format!("the firewall's rules were changed by others {ATTEMPTS} times in a row"))
}
