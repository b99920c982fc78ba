//! Objects of one kind, as they are known now, and which of them are others than before.

use std::collections::{BTreeMap, BTreeSet};

/// By name, or by `namespace/name`.
#[derive(Debug)]
pub(crate) struct Objects<T> {
    known: BTreeMap<String, T>,
    /// Those that came, changed or went since somebody asked.
    touched: BTreeSet<String>,
}

impl<T> Default for Objects<T> {
    fn default() -> Objects<T> {
        Objects { known: BTreeMap::new(), touched: BTreeSet::new() }
    }
}

impl<T: PartialEq> Objects<T> {
    /// These are all.
    pub fn list(&mut self, all: impl Iterator<Item = (String, T)>) {
        let mut gone = std::mem::take(&mut self.known);
        for (name, object) in all {
            if gone.remove(&name).as_ref() != Some(&object) {
                self.touched.insert(name.clone());
            }
            self.known.insert(name, object);
        }
        self.touched.extend(gone.into_keys());
    }

    /// This one is new, or is now like this.
    pub fn put(&mut self, name: String, object: T) {
        if self.known.get(&name) != Some(&object) {
            self.touched.insert(name.clone());
            self.known.insert(name, object);
        }
    }

    /// This one is gone.
    pub fn remove(&mut self, name: &str) {
        if self.known.remove(name).is_some() {
            self.touched.insert(name.to_owned());
        }
    }

    pub fn get(&self, name: &str) -> Option<&T> {
        self.known.get(name)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&String, &T)> {
        self.known.iter()
    }

    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Something else about it has changed.
    pub fn touch(&mut self, name: &str) {
        self.touched.insert(name.to_owned());
    }

    /// Those that are others than before; nobody is from now on.
    pub fn take_touched(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.touched)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_other_than_before_is_touched() {
        let mut objects = Objects::default();
        let named =
            |pairs: &[(&str, u8)]| pairs.iter().map(|(name, it)| (name.to_string(), *it)).collect::<Vec<_>>();
        objects.list(named(&[("a", 1), ("b", 1), ("c", 1)]).into_iter());
        assert_eq!(objects.take_touched().len(), 3);
        objects.list(named(&[("a", 1), ("b", 2), ("d", 1)]).into_iter());
        assert_eq!(objects.take_touched(), BTreeSet::from(["b", "c", "d"].map(String::from)));
        objects.put("a".into(), 1);
        objects.remove("nobody");
        assert!(objects.take_touched().is_empty());
        objects.put("a".into(), 3);
        objects.remove("d");
        assert_eq!(objects.take_touched(), BTreeSet::from(["a", "d"].map(String::from)));
    }
}
