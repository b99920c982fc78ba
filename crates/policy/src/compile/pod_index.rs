//! Who there is: the pods that policies select, by namespace, and the nodes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::api::{Labels, Node, Pod};
use crate::rule::{Namespaces, Selection};
use crate::selector::Selector;
use crate::Snapshot;

/// A namespace with pods in it.
#[derive(Clone, Debug)]
struct Inhabited {
    labels: Labels,
    /// By `namespace/name`, those that have a network of their own.
    pods: BTreeMap<String, Pod>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Population {
    inhabited: BTreeMap<String, Inhabited>,
    /// Namespaces and nodes; its pods and policies are kept elsewhere.
    around: Snapshot,
}

impl Population {
    /// Nobody yet, among the namespaces and nodes of a snapshot.
    pub fn around(snapshot: &Snapshot) -> Population {
        let mut around = Snapshot::new();
        around.namespaces.clone_from(&snapshot.namespaces);
        around.nodes.clone_from(&snapshot.nodes);
        Population { inhabited: BTreeMap::new(), around }
    }

    /// Puts a pod into its place, or takes it away; returns who was there before.
    pub fn put(&mut self, name: &str, pod: Option<Pod>) -> Option<Pod> {
        let namespace = namespace_of(name);
        match pod {
            Some(pod) => {
                let around = &self.around;
                let empty = || Inhabited { labels: around.labels_of(namespace), pods: BTreeMap::new() };
                let home = self.inhabited.entry(namespace.to_owned()).or_insert_with(empty);
                home.pods.insert(name.to_owned(), pod)
            }
            None => self.inhabited.get_mut(namespace)?.pods.remove(name),
        }
    }

    pub fn pod(&self, name: &str) -> Option<&Pod> {
        self.inhabited.get(namespace_of(name))?.pods.get(name)
    }

    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.inhabited.values().flat_map(|namespace| namespace.pods.values())
    }

    /// The pods that the selection is about, by name. Only the pods of its namespaces are looked at.
    pub fn selected<'s>(
        &'s self,
        selection: &'s Selection,
    ) -> impl Iterator<Item = (&'s String, &'s Pod)> + 's {
        let (named, labelled) = match &selection.namespaces {
            Namespaces::Named(name) => (self.inhabited.get(name.as_str()), None),
            Namespaces::Labelled(selector) => (None, Some(selector)),
        };
        let fitting = labelled.into_iter().flat_map(|selector| {
            self.inhabited.values().filter(|namespace| selector.matches(&namespace.labels))
        });
        let pods = named.into_iter().chain(fitting).flat_map(|namespace| &namespace.pods);
        pods.filter(|(_, pod)| selection.pods.matches(&pod.metadata.labels))
    }

    /// Whether the selection is about a pod, be it here or not any more.
    pub fn selects(&self, selection: &Selection, pod: &Pod) -> bool {
        let namespace = &pod.metadata.namespace;
        let at_home = match &selection.namespaces {
            Namespaces::Named(name) => name == namespace,
            Namespaces::Labelled(selector) => {
                self.inhabited.get(namespace).is_some_and(|home| selector.matches(&home.labels))
            }
        };
        at_home && selection.pods.matches(&pod.metadata.labels)
    }

    /// The nodes that a selector selects.
    pub fn nodes<'s>(&'s self, selector: &'s Selector) -> impl Iterator<Item = &'s Node> + 's {
        self.around.nodes.iter().filter(|node| selector.matches(&node.metadata.labels))
    }

    /// The addresses of the node where a pod runs.
    pub fn own_node(&self, pod: &Pod) -> Vec<IpAddr> {
        self.around.own_node(pod)
    }
}

/// Of `namespace/name`.
fn namespace_of(name: &str) -> &str {
    name.split_once('/').map_or("", |(namespace, _)| namespace)
}
