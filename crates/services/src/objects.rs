//! The objects that Services depend on, by kind and name.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use podwire_policy::{read_object, without_nulls, Error};
use serde_json::Value;

use crate::api::{EndpointSlice, Node, Service, ServiceCidr};
use crate::Problem;

/// The kinds of objects that Services depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Kind {
    Service,
    EndpointSlice,
    Node,
    ServiceCidr,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 4] = [Kind::Service, Kind::EndpointSlice, Kind::Node, Kind::ServiceCidr];

    /// The API version and the name.
    pub fn name(self) -> (&'static str, &'static str) {
        match self {
            Kind::Service => ("v1", "Service"),
            Kind::EndpointSlice => ("discovery.k8s.io/v1", "EndpointSlice"),
            Kind::Node => ("v1", "Node"),
            Kind::ServiceCidr => ("networking.k8s.io/v1", "ServiceCIDR"),
        }
    }

    /// The kind of an object; `None` if Services do not depend on it.
    pub fn of(object: &Value) -> Option<Kind> {
        let text = |field: &str| object[field].as_str().unwrap_or_default();
        Kind::ALL.into_iter().find(|kind| kind.name() == (text("apiVersion"), text("kind")))
    }
}

/// Namespace and name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    /// The namespace; empty for cluster-scoped objects.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl ObjectName {
    /// The name of an object as it was written. A Service or slice without a namespace is in `default`.
    pub fn of(kind: Kind, object: &Value) -> ObjectName {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
        let namespace = match kind {
            Kind::Node | Kind::ServiceCidr => "",
            Kind::Service | Kind::EndpointSlice if text("namespace").is_empty() => "default",
            Kind::Service | Kind::EndpointSlice => text("namespace"),
        };
        ObjectName { namespace: namespace.into(), name: text("name").into() }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

/// The objects of a cluster, as far as this node knows them.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    pub(crate) services: BTreeMap<ObjectName, Service>,
    pub(crate) slices: BTreeMap<ObjectName, EndpointSlice>,
    pub(crate) nodes: BTreeMap<ObjectName, Node>,
    pub(crate) service_cidrs: BTreeMap<ObjectName, ServiceCidr>,
    /// The names of the slices of each Service, without those that belong to another proxy.
    slices_of: BTreeMap<ObjectName, BTreeSet<ObjectName>>,
    /// Objects that cannot be read.
    unreadable: BTreeMap<(Kind, ObjectName), Problem>,
    /// The Services that changed, or whose slices did, since the last [`take_changed`](Objects::take_changed).
    changed: BTreeSet<ObjectName>,
}

impl Objects {
    /// No objects.
    pub fn new() -> Objects {
        Objects::default()
    }

    /// Adds an object or all objects of a list, or replaces the objects of the same name. Objects of other kinds are
    /// ignored. One that cannot be read is reported as a [`Problem`].
    pub fn put(&mut self, object: Value) {
        let object = without_nulls(object);
        if let (None, Some(items)) = (Kind::of(&object), object["items"].as_array()) {
            return items.iter().for_each(|item| self.put(item.clone()));
        }
        let Some(kind) = Kind::of(&object) else { return };
        let name = ObjectName::of(kind, &object);
        self.remove(kind, &name);
        if let Err(error) = self.add(kind, name.clone(), object) {
            let reason = match error {
                Error::Malformed { reason, .. } => reason,
                other => other.to_string(),
            };
            let text = format!("{reason}; the object is ignored");
            self.unreadable.insert((kind, name.clone()), Problem::new(describe(kind, &name), text));
        }
    }

    fn add(&mut self, kind: Kind, name: ObjectName, object: Value) -> Result<(), Error> {
        if name.name.is_empty() {
            return Err(Error::MissingField("metadata.name"));
        }
        let word = kind.name().1;
        match kind {
            Kind::Service => {
                self.changed.insert(name.clone());
                self.services.insert(name, read_object(object, word)?);
            }
            Kind::EndpointSlice => {
                let slice: EndpointSlice = read_object(object, word)?;
                if let Some(service) = service_of(&name, &slice) {
                    self.slices_of.entry(service.clone()).or_default().insert(name.clone());
                    self.changed.insert(service);
                }
                self.slices.insert(name, slice);
            }
            Kind::Node => _ = self.nodes.insert(name, read_object(object, word)?),
            Kind::ServiceCidr => _ = self.service_cidrs.insert(name, read_object(object, word)?),
        }
        Ok(())
    }

    /// Removes an object, if there is one of this name.
    pub fn remove(&mut self, kind: Kind, name: &ObjectName) {
        self.unreadable.remove(&(kind, name.clone()));
        match kind {
            Kind::Service => {
                if self.services.remove(name).is_some() {
                    self.changed.insert(name.clone());
                }
            }
            Kind::EndpointSlice => self.remove_slice(name),
            Kind::Node => drop(self.nodes.remove(name)),
            Kind::ServiceCidr => drop(self.service_cidrs.remove(name)),
        }
    }

    fn remove_slice(&mut self, name: &ObjectName) {
        let slice = self.slices.remove(name);
        let Some(service) = slice.and_then(|slice| service_of(name, &slice)) else { return };
        if let Some(slices) = self.slices_of.get_mut(&service) {
            slices.remove(name);
            if slices.is_empty() {
                self.slices_of.remove(&service);
            }
        }
        self.changed.insert(service);
    }

    /// Removes all objects of a kind.
    pub fn clear(&mut self, kind: Kind) {
        self.unreadable.retain(|(of, _), _| *of != kind);
        match kind {
            Kind::Service => self.changed.extend(std::mem::take(&mut self.services).into_keys()),
            Kind::EndpointSlice => {
                self.slices.clear();
                self.changed.extend(std::mem::take(&mut self.slices_of).into_keys());
            }
            Kind::Node => self.nodes.clear(),
            Kind::ServiceCidr => self.service_cidrs.clear(),
        }
    }

    /// The Services that changed, or whose slices did, since the last call.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<ObjectName> {
        std::mem::take(&mut self.changed)
    }

    /// The slices of a Service.
    pub(crate) fn slices_of(&self, service: &ObjectName) -> Vec<(&ObjectName, &EndpointSlice)> {
        let names = self.slices_of.get(service).into_iter().flatten();
        names.filter_map(|name| self.slices.get_key_value(name)).collect()
    }

    pub(crate) fn unreadable(&self) -> impl Iterator<Item = &Problem> {
        self.unreadable.values()
    }
}

/// The Service of a slice; `None` if it has none, or belongs to another proxy.
fn service_of(name: &ObjectName, slice: &EndpointSlice) -> Option<ObjectName> {
    let service = slice.service_name().filter(|_| !slice.metadata.is_excluded())?;
    Some(ObjectName { namespace: name.namespace.clone(), name: service.into() })
}

/// Kind and name, as problems name an object.
pub(crate) fn describe(kind: Kind, name: &ObjectName) -> String {
    format!("{} {name}", kind.name().1)
}
