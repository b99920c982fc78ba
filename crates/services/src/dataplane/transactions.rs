//! The difference between two states as changes of elements.

use std::collections::BTreeMap;
use std::sync::Arc;

use podwire_ip::IpFamily;
use podwire_netlink::nft::{Element, Transaction};

use super::elements::{of_frontend, of_node, Elements};
use super::sets::{SetId, TABLE};
use crate::{Backend, Desired, Frontend};

/// The elements to delete and to add. One whose data changes is in both.
#[derive(Debug, Default)]
pub(super) struct Difference {
    delete: BTreeMap<(SetId, IpFamily), Vec<Element>>,
    add: BTreeMap<(SetId, IpFamily), Vec<Element>>,
}

impl Difference {
    /// The difference between two states, computed only for the frontends that differ.
    pub fn between(last: &Desired, desired: &Desired) -> Difference {
        let mut difference = Difference::default();
        let elements_of = |frontend: &Frontend, backend: Option<&Arc<Backend>>| {
            backend.map(|backend| of_frontend(frontend, backend)).unwrap_or_default()
        };
        for (frontend, backend) in &desired.frontends {
            let before = last.frontends.get(frontend);
            if before != Some(backend) {
                difference.add(elements_of(frontend, before), elements_of(frontend, Some(backend)));
            }
        }
        let gone = last.frontends.iter().filter(|(frontend, _)| !desired.frontends.contains_key(*frontend));
        gone.for_each(|(frontend, backend)| difference.add(of_frontend(frontend, backend), Elements::new()));
        difference.add(of_node(last, Some(desired)), of_node(desired, Some(last)));
        difference
    }

    /// Adds what turns `found` into `desired`.
    pub fn add(&mut self, found: Elements, desired: Elements) {
        let only_in =
            |one: &Elements, other: &Elements, into: &mut BTreeMap<(SetId, IpFamily), Vec<Element>>| {
                for (id, element) in one.iter().filter(|(id, element)| other.get(*id) != Some(*element)) {
                    into.entry((id.0, id.1)).or_default().push(element.clone());
                }
            };
        only_in(&found, &desired, &mut self.delete);
        only_in(&desired, &found, &mut self.add);
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.delete.values().chain(self.add.values()).map(Vec::len).sum()
    }

    /// Deletes first, so that keys are free.
    pub fn write(&self, change: &mut Transaction) {
        for ((set, family), elements) in &self.delete {
            change.delete_elements(&TABLE, &set.name(*family), elements);
        }
        for ((set, family), elements) in &self.add {
            change.add_elements(&TABLE, &set.name(*family), elements);
        }
    }
}
