//! The desired content of a table: sets with elements, chains with rules.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use podwire_netlink::nft::{Base, Element, Rule, Set, Table, Type};

/// Elements by their key and whether they end an interval.
pub(super) type Elements = BTreeMap<(Vec<u8>, bool), Arc<Element>>;

/// An element with its key in [`Elements`].
pub(super) fn keyed(element: Arc<Element>) -> ((Vec<u8>, bool), Arc<Element>) {
    ((element.key.bytes().to_vec(), element.ends_range), element)
}

/// What a set or map holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SetKind {
    Keys(Vec<Type>),
    Intervals(Type),
    /// Keys of several fields; the last field is a range.
    RangedKeys(Vec<Type>),
    Verdicts(Type),
    IntervalVerdicts(Type),
    /// Keys, each with a packet counter.
    Counters(Type),
    /// Keys that are added outside of a reconcile and expire after this time.
    Expiring(Vec<Type>, Duration),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DesiredSet {
    pub kind: SetKind,
    pub elements: Arc<Elements>,
}

impl DesiredSet {
    /// The set as netlink creates it.
    pub fn definition<'a>(&'a self, name: &'a str) -> Set<'a> {
        match &self.kind {
            SetKind::Keys(types) => Set::of(name, types),
            SetKind::Intervals(kind) => Set::ranges(name, std::slice::from_ref(kind)),
            SetKind::Counters(kind) => Set::of(name, std::slice::from_ref(kind)).counting(),
            SetKind::RangedKeys(types) => Set::ranges(name, types),
            SetKind::IntervalVerdicts(kind) => Set::verdicts(name, std::slice::from_ref(kind)).of_ranges(),
            SetKind::Expiring(types, lifetime) => Set::of(name, types).forgetting(*lifetime),
            SetKind::Verdicts(kind) => Set::verdicts(name, std::slice::from_ref(kind)),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DesiredChain {
    /// The hook, for a base chain.
    pub base: Option<Base>,
    pub rules: Vec<Rule>,
}

/// The whole desired content of a table. Two versions share what they have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DesiredTable {
    pub table: Table,
    pub sets: BTreeMap<String, DesiredSet>,
    pub chains: BTreeMap<String, Arc<DesiredChain>>,
}

impl DesiredTable {
    /// A table without content.
    pub fn empty(table: Table) -> DesiredTable {
        DesiredTable { table, sets: BTreeMap::new(), chains: BTreeMap::new() }
    }

    pub fn add_set(&mut self, name: String, kind: SetKind, elements: Vec<Element>) {
        let elements = elements.into_iter().map(|element| keyed(Arc::new(element))).collect();
        self.sets.insert(name, DesiredSet { kind, elements: Arc::new(elements) });
    }

    pub fn add_chain(&mut self, name: impl Into<String>, rules: Vec<Rule>) {
        self.chains.insert(name.into(), Arc::new(DesiredChain { base: None, rules }));
    }

    pub fn add_base_chain(&mut self, name: impl Into<String>, base: Base, rules: Vec<Rule>) {
        self.chains.insert(name.into(), Arc::new(DesiredChain { base: Some(base), rules }));
    }
}
