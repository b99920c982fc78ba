//! The store of blocks in the Kubernetes API, as Calico's own custom resources: nodes with Calico and nodes with Podwire share one cluster.
//!
//! The allocator speaks Calico's keys and values of etcd; here they become objects of `crd.projectcalico.org/v1` or
//! `projectcalico.org/v3` and back. A revision is an object's `resourceVersion`, which Kubernetes promises to be a number
//! (docs/decisions/0019-kubernetes-store.md).
//!
//! - **Every write replaces a whole object** (verb `update`, which is all that Calico's own role allows), with the version that was read. What
//!   else stands in the object, labels and annotations of others, goes along: so what was read one by one is remembered for the write.
//! - **A deletion is a mark first** (`spec.deleted`), which is the moment when it happens; then the object is removed. Whoever
//!   finds a marked object takes it as gone, and removes it.
//! - **Nothing is sent twice**: of a write whose answer was lost nobody knows whether it was done, and that is told.
//!
//! The store's trait is synchronous, the client is not: a store holds a small runtime of its own, on the caller's thread
//! (docs/decisions/0017-synchronous-store.md). It must not be called on a thread that runs async tasks.

#![forbid(unsafe_code)]

mod endpoint;
mod follow;
mod group;
mod kind;
mod name;
mod pods;
mod record;
mod seen;
mod server;

use std::path::{Path, PathBuf};

use follow::KubernetesFollow;
use podwire_block_ipam::store::{Entry, Follow, Revision, Store, StoreError};
use podwire_block_ipam::{key, Key};
use serde_json::{json, Value};

pub use group::ApiGroup;
use kind::Kind;
pub use pods::Pods;
use seen::Seen;
use server::{Refusal, Server};

/// How often a key is created again because a marked object stood there.
const TRIES: usize = 3;

/// Where the nodes of Kubernetes are.
const NODES: &str = "/api/v1/nodes";

/// A store in the Kubernetes API.
pub struct KubernetesStore {
    kubeconfig: Option<PathBuf>,
    server: Server,
    group: ApiGroup,
    seen: Seen,
}

/// Where the object of a key is.
struct Place<'a> {
    verb: &'static str,
    key: &'a str,
    meant: Key,
    kind: Kind,
    path: String,
    name: String,
}

impl KubernetesStore {
    /// Opens the store behind a kubeconfig, or of the cluster in whose pod we run. Without a group, the server is asked which it has: as
    /// Calico does it, the newer one is taken only if the older is not there.
    pub fn connect(
        kubeconfig: Option<&Path>,
        group: Option<ApiGroup>,
    ) -> Result<KubernetesStore, StoreError> {
        let fail = |store: &str, why| StoreError::Unavailable {
            store: store.into(),
            verb: "open",
            key: "Calico's custom resources".into(),
            why,
        };
        let server = Server::new(kubeconfig).map_err(|why| fail("kubernetes", why))?;
        let group = match group {
            Some(group) => group,
            None => discover(&server).map_err(|why| fail(&server.name, why))?,
        };
        Ok(KubernetesStore {
            kubeconfig: kubeconfig.map(Path::to_owned),
            server,
            group,
            seen: Seen::default(),
        })
    }

    /// Which group holds the objects.
    pub fn group(&self) -> ApiGroup {
        self.group
    }

    fn place<'a>(&self, verb: &'static str, key: &'a str) -> Result<Place<'a>, StoreError> {
        let known = Key::parse(key).and_then(|meant| Kind::of(&meant).map(|found| (meant, found)));
        let Some((meant, (kind, name))) = known else {
            return Err(self.unavailable(verb, key, "no custom resource holds such a key".into()));
        };
        Ok(Place { verb, key, meant, kind, path: kind.path(self.group), name })
    }

    fn unavailable(&self, verb: &'static str, key: &str, why: String) -> StoreError {
        StoreError::Unavailable { store: self.server.name.clone(), verb, key: key.into(), why }
    }

    fn failed(&self, place: &Place<'_>, request: &str, refusal: Refusal) -> StoreError {
        let object = format!("{}/{}", place.kind.plural(self.group), place.name);
        self.unavailable(place.verb, place.key, format!("{request} {object}: {}", refusal.words()))
    }

    /// The object, marked or not.
    fn look(&self, place: &Place<'_>) -> Result<Option<Value>, StoreError> {
        if !name::is_possible(&place.name) {
            return Ok(None);
        }
        match self.server.get(&place.path, &place.name) {
            Ok(object) => Ok(Some(object)),
            Err(Refusal::Missing(_)) => Ok(None),
            Err(refusal) => Err(self.failed(place, "get", refusal)),
        }
    }

    /// The object, if it is not marked. A marked one is removed on the way, if that can be: it is gone in any case.
    fn find(&self, place: &Place<'_>) -> Result<Option<Value>, StoreError> {
        match self.look(place)? {
            Some(object) if place.kind.is_marked_when_deleted() && record::is_marked(&object) => {
                let _ = self.server.delete(&place.path, &object);
                Ok(None)
            }
            found => Ok(found),
        }
    }

    /// The object as it was read with `revision`.
    fn at(&self, place: &Place<'_>, revision: Revision) -> Result<Value, StoreError> {
        let kept = self.seen.take(place.kind, &place.name);
        if let Some(object) = kept.filter(|object| version(object) == Ok(revision)) {
            return Ok(object);
        }
        match self.find(place)? {
            None => Err(StoreError::Missing { key: place.key.into() }),
            Some(object) if self.revision(place, &object)? == revision => Ok(object),
            Some(_) => Err(StoreError::Changed { key: place.key.into() }),
        }
    }

    /// Replaces an object that is still as it was read.
    fn put(&self, place: &Place<'_>, object: &Value) -> Result<Value, StoreError> {
        match self.server.put(&place.path, &place.name, object) {
            Ok(written) => Ok(written),
            Err(Refusal::Missing(_) | Refusal::Conflict(_)) => match self.find(place)? {
                None => Err(StoreError::Missing { key: place.key.into() }),
                Some(_) => Err(StoreError::Changed { key: place.key.into() }),
            },
            Err(refusal) => Err(self.failed(place, "update", refusal)),
        }
    }

    /// Whether all that an administrator asked for was kept: a server whose definitions are older than a setting drops it, and says nothing. In
    /// records that nodes write, what an older Calico does not know is not missed.
    fn is_whole(&self, place: &Place<'_>, asked: &Value, kept: &Value) -> Result<(), StoreError> {
        let fields = asked["spec"].as_object().into_iter().flatten().map(|(field, _)| field.as_str());
        let dropped: Vec<&str> = fields.filter(|field| kept["spec"].get(field).is_none()).collect();
        if place.kind.is_marked_when_deleted() || dropped.is_empty() {
            return Ok(());
        }
        let (object, dropped) = (place.kind.plural(self.group), dropped.join(", "));
        let why = format!(
            "it was written, but {object}/{} cannot hold {dropped}: the custom resources on this server are of an older Calico",
            place.name
        );
        Err(self.unavailable(place.verb, place.key, why))
    }

    fn revision(&self, place: &Place<'_>, object: &Value) -> Result<Revision, StoreError> {
        version(object).map_err(|why| self.unavailable(place.verb, place.key, why))
    }

    /// The revision of an object that was read or written, which is remembered.
    fn remember(&self, place: Place<'_>, object: Value) -> Result<Revision, StoreError> {
        let revision = self.revision(&place, &object)?;
        self.seen.keep(place.kind, place.name, object);
        Ok(revision)
    }

    fn node(&self, key: &str, name: &str) -> Result<Option<Entry>, StoreError> {
        let fail = |why: String| self.unavailable("get", key, format!("get nodes/{name}: {why}"));
        if !name::is_possible(name) {
            return Ok(None);
        }
        let object = match self.server.get(NODES, name) {
            Ok(object) => object,
            Err(Refusal::Missing(_)) => return Ok(None),
            Err(refusal) => return Err(fail(refusal.words())),
        };
        node_entry(&object).map(Some).map_err(fail)
    }

    /// All nodes.
    fn nodes(&self, prefix: &str) -> Result<Vec<Entry>, StoreError> {
        let fail = |why: String| self.unavailable("list", prefix, format!("list nodes: {why}"));
        let nodes = self.server.list(NODES, None).map_err(|refusal| fail(refusal.words()))?;
        let mut entries = Vec::with_capacity(nodes.len());
        for node in &nodes {
            let entry = node_entry(node).map_err(fail)?;
            entries.extend(Some(entry).filter(|entry| entry.key.starts_with(prefix)));
        }
        entries.sort_by(|one, other| one.key.cmp(&other.key));
        Ok(entries)
    }

    /// Writes what Calico's object of a node says into the annotations of the Node.
    fn write_node(&self, key: &str, name: &str, value: &[u8], at: Revision) -> Result<Revision, StoreError> {
        let fail = |why: String| self.unavailable("update", key, format!("update nodes/{name}: {why}"));
        let annotations = record::annotations(value).map_err(fail)?;
        let metadata = json!({ "resourceVersion": at.0.to_string(), "annotations": annotations });
        match self.server.patch_status(NODES, name, &json!({ "metadata": metadata })) {
            Ok(written) => version(&written).map_err(fail),
            Err(Refusal::Missing(_)) => Err(StoreError::Missing { key: key.into() }),
            Err(Refusal::Conflict(_)) => Err(StoreError::Changed { key: key.into() }),
            Err(refusal) => Err(fail(refusal.words())),
        }
    }
}

/// Calico's object of a node.
fn node_entry(node: &Value) -> Result<Entry, String> {
    let name = node["metadata"]["name"].as_str().unwrap_or_default();
    Ok(Entry { key: Key::Node(name.into()).to_string(), value: record::node(node), revision: version(node)? })
}

/// The object of a kind as a store holds it; `None` for one that says of itself that it is nothing.
fn record_entry(kind: Kind, object: Value) -> Result<Option<Entry>, String> {
    let Some(key) = record::key_of(kind, &object) else { return Ok(None) };
    let revision = version(&object)?;
    Ok(Some(Entry { key, value: record::value(kind, object), revision }))
}

impl Store for KubernetesStore {
    fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        match Key::parse(key) {
            Some(Key::Node(name)) => return self.node(key, &name),
            Some(Key::Endpoint(namespace, name)) => {
                let place = endpoint::Place::of(key, &namespace, &name);
                return place.map_or(Ok(None), |place| self.endpoint(&place));
            }
            // They follow from namespaces and service accounts, and are never made.
            Some(Key::Profile(_)) => {
                return Ok(Some(Entry { key: key.into(), value: b"{}".into(), revision: Revision(0) }))
            }
            _ => {}
        }
        let place = self.place("get", key)?;
        let Some(object) = self.find(&place)? else {
            return Ok(None);
        };
        let value = record::value(place.kind, object.clone());
        let revision = self.remember(place, object)?;
        Ok(Some(Entry { key: key.into(), value, revision }))
    }

    /// Objects of one kind are as they were at one moment; a prefix of several kinds sees one kind after the other. Nodes are not ours: they
    /// are told to who asks for nodes, and not to who asks for everything.
    fn list(&self, prefix: &str) -> Result<Vec<Entry>, StoreError> {
        if prefix.starts_with(key::NODES) {
            return self.nodes(prefix);
        }
        let mut entries = Vec::new();
        for kind in Kind::ALL {
            for selector in kind.questions(prefix) {
                let path = kind.path(self.group);
                let plural = kind.plural(self.group);
                let fail = |why| self.unavailable("list", prefix, format!("list {plural}: {why}"));
                let objects = match self.server.list(&path, selector.as_deref()) {
                    Ok(objects) => objects,
                    // An old Calico does not have every kind.
                    Err(Refusal::Missing(_)) => continue,
                    Err(refusal) => return Err(fail(refusal.words())),
                };
                for object in objects {
                    let is_gone = kind.is_marked_when_deleted() && record::is_marked(&object);
                    let key = record::key_of(kind, &object).filter(|key| key.starts_with(prefix));
                    if let Some(key) = key.filter(|_| !is_gone) {
                        let revision = version(&object).map_err(fail)?;
                        entries.push(Entry { value: record::value(kind, object), key, revision });
                    }
                }
            }
        }
        entries.sort_by(|one, other| one.key.cmp(&other.key));
        entries.dedup_by(|one, other| one.key == other.key);
        Ok(entries)
    }

    /// A block's name tells its key, so that of blocks only metadata are read; a mark is not seen by that. Of others the key
    /// stands in the object itself.
    fn keys(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        if !prefix.starts_with(key::BLOCKS) {
            return Ok(self.list(prefix)?.into_iter().map(|entry| entry.key).collect());
        }
        let listed = self.server.list_metadata(&Kind::Block.path(self.group));
        let objects = match listed {
            Err(Refusal::Missing(_)) => Vec::new(),
            listed => listed.map_err(|refusal| {
                let what = Kind::Block.plural(self.group);
                self.unavailable("list", prefix, format!("list {what}: {}", refusal.words()))
            })?,
        };
        let named = objects.iter().filter_map(|object| name::to_block(object["metadata"]["name"].as_str()?));
        let mut keys: Vec<String> = named.map(|cidr| Key::Block(cidr).to_string()).collect();
        keys.retain(|key| key.starts_with(prefix));
        keys.sort();
        Ok(keys)
    }

    fn create(&self, key: &str, value: &[u8]) -> Result<Revision, StoreError> {
        if let Some(Key::Endpoint(..)) = Key::parse(key) {
            // An endpoint is a part of its pod. Without one there is nothing that it could be a part of.
            return Err(StoreError::Missing { key: key.into() });
        }
        let place = self.place("create", key)?;
        if !name::is_possible(&place.name) {
            let why = format!("{:?} cannot be the name of an object of Kubernetes", place.name);
            return Err(self.unavailable("create", key, why));
        }
        let mut object = json!({ "metadata": {} });
        record::fill(&place.meant, self.group, value, &mut object)
            .map_err(|why| self.unavailable("create", key, why))?;
        for _ in 0..TRIES {
            match self.server.post(&place.path, &object) {
                Ok(made) => {
                    self.is_whole(&place, &object, &made)?;
                    return self.remember(place, made);
                }
                Err(Refusal::Conflict(_)) if self.find(&place)?.is_none() => {}
                Err(Refusal::Conflict(_)) => break,
                Err(refusal) => return Err(self.failed(&place, "create", refusal)),
            }
        }
        Err(StoreError::Exists { key: key.into() })
    }

    fn update(&self, key: &str, value: &[u8], revision: Revision) -> Result<Revision, StoreError> {
        if let Some(Key::Node(name)) = Key::parse(key) {
            return self.write_node(key, &name, value, revision);
        }
        if let Some(Key::Endpoint(namespace, name)) = Key::parse(key) {
            let place = endpoint::Place::of(key, &namespace, &name);
            let place = place.ok_or_else(|| StoreError::Missing { key: key.into() })?;
            return self.write_endpoint(&place, value, revision);
        }
        let place = self.place("update", key)?;
        let mut object = self.at(&place, revision)?;
        forget_managers(&mut object);
        record::fill(&place.meant, self.group, value, &mut object)
            .map_err(|why| self.unavailable("update", key, why))?;
        let written = self.put(&place, &object)?;
        self.is_whole(&place, &object, &written)?;
        self.remember(place, written)
    }

    fn delete(&self, key: &str, revision: Revision) -> Result<(), StoreError> {
        if let Some(Key::Endpoint(namespace, name)) = Key::parse(key) {
            let place = endpoint::Place::of(key, &namespace, &name);
            let place = place.ok_or_else(|| StoreError::Missing { key: key.into() })?;
            return self.delete_endpoint(&place, revision);
        }
        let place = self.place("delete", key)?;
        let mut object = self.at(&place, revision)?;
        if place.kind.is_marked_when_deleted() {
            forget_managers(&mut object);
            record::mark(place.kind, self.group, &mut object);
            let marked = self.put(&place, &object)?;
            // Since then it is gone. If it cannot be removed now, whoever finds it does it.
            let _ = self.server.delete(&place.path, &marked);
            return Ok(());
        }
        match self.server.delete(&place.path, &object) {
            Ok(()) => Ok(()),
            Err(Refusal::Missing(_)) => Err(StoreError::Missing { key: key.into() }),
            Err(Refusal::Conflict(_)) => match self.find(&place)? {
                None => Err(StoreError::Missing { key: key.into() }),
                Some(_) => Err(StoreError::Changed { key: key.into() }),
            },
            Err(refusal) => Err(self.failed(&place, "delete", refusal)),
        }
    }

    fn follow(&self, prefixes: &[&str]) -> Result<Box<dyn Follow>, StoreError> {
        let follow = KubernetesFollow::new(self.kubeconfig.as_deref(), self.group, prefixes);
        Ok(Box::new(follow.map_err(|why| self.unavailable("follow", &prefixes.join(", "), why))?))
    }
}

/// The version of an object: a number since there is Kubernetes, and by its promise since 1.35.
fn version(object: &Value) -> Result<Revision, String> {
    let text = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    text.parse().map(Revision).map_err(|_| format!("its resourceVersion {text:?} is no number"))
}

/// Who has written which field is the server's own book, which it goes on with if nothing is said about it.
fn forget_managers(object: &mut Value) {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.shift_remove("managedFields");
    }
}

fn discover(server: &Server) -> Result<ApiGroup, String> {
    for group in [ApiGroup::V1, ApiGroup::V3] {
        match server.resources(group.name()) {
            Ok(plurals) if plurals.iter().any(|plural| plural == Kind::Block.plural(group)) => {
                return Ok(group)
            }
            Ok(_) | Err(Refusal::Missing(_)) => {}
            Err(refusal) => return Err(format!("which groups it has: {}", refusal.words())),
        }
    }
    Err(format!(
        "it has ipamblocks neither in {} nor in {}: are Calico's custom resources installed?",
        ApiGroup::V1,
        ApiGroup::V3
    ))
}
