//! The difference between two states as changes of elements.

use std::collections::BTreeMap;

use podwire_ip::IpFamily;
use podwire_netlink::nft::{Element, Transaction};

use super::elements::Elements;
use super::sets::{SetId, TABLE};

/// The elements to delete and to add. One whose data changes is in both.
#[derive(Debug, Default)]
pub(super) struct Difference {
    delete: BTreeMap<(SetId, IpFamily), Vec<Element>>,
    add: BTreeMap<(SetId, IpFamily), Vec<Element>>,
}

impl Difference {
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
