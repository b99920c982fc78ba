//! The pods that policies can select, by namespace, and the nodes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::api::{Labels, Node, Pod};
use crate::rule::{Namespaces, Selection};
use crate::selector::Selector;
use crate::Snapshot;

/// A namespace with its pods.
#[derive(Clone, Debug)]
struct NamespacePods {
    labels: Labels,
    /// The pods with a pod network, by `namespace/name`.
    pods: BTreeMap<String, Pod>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct PodIndex {
    namespaces: BTreeMap<String, NamespacePods>,
    /// Only its namespaces and nodes are filled.
    snapshot: Snapshot,
}

impl PodIndex {
    /// An index without pods, with the namespaces and nodes of a snapshot.
    pub fn new(snapshot: &Snapshot) -> PodIndex {
        let mut kept = Snapshot::new();
        kept.namespaces.clone_from(&snapshot.namespaces);
        kept.nodes.clone_from(&snapshot.nodes);
        PodIndex { namespaces: BTreeMap::new(), snapshot: kept }
    }

    /// Sets or removes a pod. Returns the previous one.
    pub fn set(&mut self, name: &str, pod: Option<Pod>) -> Option<Pod> {
        let namespace = namespace_of(name);
        match pod {
            Some(pod) => {
                let snapshot = &self.snapshot;
                let empty =
                    || NamespacePods { labels: snapshot.namespace_labels(namespace), pods: BTreeMap::new() };
                let entry = self.namespaces.entry(namespace.to_owned()).or_insert_with(empty);
                entry.pods.insert(name.to_owned(), pod)
            }
            None => self.namespaces.get_mut(namespace)?.pods.remove(name),
        }
    }

    pub fn pod(&self, name: &str) -> Option<&Pod> {
        self.namespaces.get(namespace_of(name))?.pods.get(name)
    }

    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.namespaces.values().flat_map(|namespace| namespace.pods.values())
    }

    /// The selected pods, by name. Only pods of the selected namespaces are visited.
    pub fn selected<'s>(
        &'s self,
        selection: &'s Selection,
    ) -> impl Iterator<Item = (&'s String, &'s Pod)> + 's {
        let (named, labelled) = match &selection.namespaces {
            Namespaces::Named(name) => (self.namespaces.get(name.as_str()), None),
            Namespaces::Labelled(selector) => (None, Some(selector)),
        };
        let matching = labelled.into_iter().flat_map(|selector| {
            self.namespaces.values().filter(|namespace| selector.matches(&namespace.labels))
        });
        let pods = named.into_iter().chain(matching).flat_map(|namespace| &namespace.pods);
        pods.filter(|(_, pod)| selection.pods.matches(&pod.metadata.labels))
    }

    /// Whether the selection selects a pod, which may have been removed from the index.
    pub fn selects(&self, selection: &Selection, pod: &Pod) -> bool {
        let namespace = &pod.metadata.namespace;
        let in_namespace = match &selection.namespaces {
            Namespaces::Named(name) => name == namespace,
            Namespaces::Labelled(selector) => {
                self.namespaces.get(namespace).is_some_and(|known| selector.matches(&known.labels))
            }
        };
        in_namespace && selection.pods.matches(&pod.metadata.labels)
    }

    /// The nodes that a selector selects.
    pub fn nodes<'s>(&'s self, selector: &'s Selector) -> impl Iterator<Item = &'s Node> + 's {
        self.snapshot.nodes.iter().filter(|node| selector.matches(&node.metadata.labels))
    }

    /// The addresses of the pod's node.
    pub fn node_addresses_of(&self, pod: &Pod) -> Vec<IpAddr> {
        self.snapshot.node_addresses_of(pod)
    }
}

/// The namespace in `namespace/name`.
fn namespace_of(name: &str) -> &str {
    name.split_once('/').map_or("", |(namespace, _)| namespace)
}
