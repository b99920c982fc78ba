//! The objects of one kind, and which of them have changed since the last compilation.

use std::collections::{BTreeMap, BTreeSet};

/// Objects by name, or by `namespace/name`.
#[derive(Debug)]
pub(crate) struct Objects<T> {
    objects: BTreeMap<String, T>,
    /// The names of added, changed and deleted objects.
    changed: BTreeSet<String>,
}

impl<T> Default for Objects<T> {
    fn default() -> Objects<T> {
        Objects { objects: BTreeMap::new(), changed: BTreeSet::new() }
    }
}

impl<T: PartialEq> Objects<T> {
    /// Replaces all objects.
    pub fn list(&mut self, all: impl Iterator<Item = (String, T)>) {
        let mut gone = std::mem::take(&mut self.objects);
        for (name, object) in all {
            if gone.remove(&name).as_ref() != Some(&object) {
                self.changed.insert(name.clone());
            }
            self.objects.insert(name, object);
        }
        self.changed.extend(gone.into_keys());
    }

    /// Adds or replaces an object.
    pub fn put(&mut self, name: String, object: T) {
        if self.objects.get(&name) != Some(&object) {
            self.changed.insert(name.clone());
            self.objects.insert(name, object);
        }
    }

    /// Deletes an object.
    pub fn remove(&mut self, name: &str) {
        if self.objects.remove(name).is_some() {
            self.changed.insert(name.to_owned());
        }
    }

    pub fn get(&self, name: &str) -> Option<&T> {
        self.objects.get(name)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&String, &T)> {
        self.objects.iter()
    }

    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Marks an object as changed.
    pub fn mark_changed(&mut self, name: &str) {
        self.changed.insert(name.to_owned());
    }

    /// The changed names since the last call.
    pub fn take_changed(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_objects_that_differ_count_as_changed() {
        let mut objects = Objects::default();
        let named =
            |pairs: &[(&str, u8)]| pairs.iter().map(|(name, it)| (name.to_string(), *it)).collect::<Vec<_>>();
        objects.list(named(&[("a", 1), ("b", 1), ("c", 1)]).into_iter());
        assert_eq!(objects.take_changed().len(), 3);
        objects.list(named(&[("a", 1), ("b", 2), ("d", 1)]).into_iter());
        assert_eq!(objects.take_changed(), BTreeSet::from(["b", "c", "d"].map(String::from)));
        objects.put("a".into(), 1);
        objects.remove("unknown");
        assert!(objects.take_changed().is_empty());
        objects.put("a".into(), 3);
        objects.remove("d");
        assert_eq!(objects.take_changed(), BTreeSet::from(["a", "d"].map(String::from)));
    }
}
