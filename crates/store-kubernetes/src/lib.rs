//! The block store in the Kubernetes API, as Calico's own custom resources, so that nodes with Calico and nodes with
//! podwire can share one cluster.
//!
//! The allocator uses Calico's etcd keys and values. This crate converts them to objects of `crd.projectcalico.org/v1`
//! or `projectcalico.org/v3` and back. A revision is an object's `resourceVersion`, which Kubernetes guarantees to be a
//! number (docs/decisions/0019-kubernetes-store.md).
//!
//! - **Every write replaces a whole object** (verb `update`, the only one that Calico's role allows), with the version
//!   that was read. Labels and annotations of other clients are kept, so objects are cached from the read to the write.
//! - **A deletion compares the version** in the same request. Calico's clients mark an object first
//!   (`spec.deleted`) and then delete it. A marked object counts as deleted, and the store deletes it when it reads it.
//! - **No write is sent twice**: if the response is lost, the write may have been done, and the error says so.
//!
//! The trait is synchronous and the client is not: a store has its own small runtime, which runs on the caller's thread
//! (docs/decisions/0017-synchronous-store.md). It must not be called on a thread that runs async tasks.

#![forbid(unsafe_code)]

mod endpoint;
mod follow;
mod group;
mod kind;
mod name;
mod object_cache;
mod pods;
mod record;
mod server;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use podwire_block_ipam::store::{Entry, Follow, Revision, Store, StoreError};
use podwire_block_ipam::{key, Key};
use serde_json::{json, Value};

use endpoint::PodEndpoint;
use follow::KubernetesFollow;
pub use group::ApiGroup;
use kind::Kind;
use object_cache::ObjectCache;
pub use pods::Pods;
use record::version;
use server::{Refusal, Server};

/// How often a creation is attempted, if a marked object has the name.
const CREATE_ATTEMPTS: usize = 3;

/// The object that Calico's programs create when they start in a cluster for the first time.
const CLUSTER_INFORMATION: (&str, &str) = ("clusterinformations", "default");

/// The path of Kubernetes nodes.
const NODES: &str = "/api/v1/nodes";

/// A store in the Kubernetes API.
pub struct KubernetesStore {
    kubeconfig: Option<PathBuf>,
    server: Server,
    group: ApiGroup,
    cache: ObjectCache,
    /// Whether Calico's programs run in the cluster, as far as is known.
    has_calico: OnceLock<bool>,
}

/// An operation on the object of a key.
struct Operation<'a> {
    verb: &'static str,
    key: &'a str,
    parsed: Key,
    kind: Kind,
    path: String,
    name: String,
}

impl KubernetesStore {
    /// Connects with a kubeconfig, or with the service account of the pod. Without a group, the group is discovered:
    /// like in Calico, the newer one is used only if the older does not exist.
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
            cache: ObjectCache::default(),
            has_calico: OnceLock::new(),
        })
    }

    /// The API group of the objects.
    pub fn group(&self) -> ApiGroup {
        self.group
    }

    fn operation<'a>(&self, verb: &'static str, key: &'a str) -> Result<Operation<'a>, StoreError> {
        let found = Key::parse(key).and_then(|parsed| Kind::of(&parsed).map(|object| (parsed, object)));
        let Some((parsed, (kind, name))) = found else {
            return Err(self.unavailable(verb, key, "no custom resource has such a key".into()));
        };
        Ok(Operation { verb, key, parsed, kind, path: kind.path(self.group), name })
    }

    fn unavailable(&self, verb: &'static str, key: &str, why: String) -> StoreError {
        self.server.unavailable(verb, key, why)
    }

    fn failed(&self, operation: &Operation<'_>, request: &str, refusal: Refusal) -> StoreError {
        let object = format!("{}/{}", operation.kind.plural(self.group), operation.name);
        self.unavailable(operation.verb, operation.key, format!("{request} {object}: {}", refusal.message()))
    }

    /// Reads the object, marked or not.
    fn read(&self, operation: &Operation<'_>) -> Result<Option<Value>, StoreError> {
        if !name::is_valid(&operation.name) {
            return Ok(None);
        }
        match self.server.get(&operation.path, &operation.name) {
            Ok(object) => Ok(Some(object)),
            Err(Refusal::Missing(_)) => Ok(None),
            Err(refusal) => Err(self.failed(operation, "get", refusal)),
        }
    }

    /// Reads the object. A marked one counts as deleted, and is removed if possible.
    fn find(&self, operation: &Operation<'_>) -> Result<Option<Value>, StoreError> {
        match self.read(operation)? {
            Some(object) if operation.kind.is_marked_when_deleted() && record::is_marked(&object) => {
                let _ = self.server.delete(&operation.path, &object);
                Ok(None)
            }
            found => Ok(found),
        }
    }

    /// The object with `revision`.
    fn find_revision(&self, operation: &Operation<'_>, revision: Revision) -> Result<Value, StoreError> {
        let cached = self.cache.take(operation.kind, &operation.name);
        if let Some(object) = cached.filter(|object| version(object) == Ok(revision)) {
            return Ok(object);
        }
        match self.find(operation)? {
            None => Err(StoreError::Missing { key: operation.key.into() }),
            Some(object) if self.revision(operation, &object)? == revision => Ok(object),
            Some(_) => Err(StoreError::Changed { key: operation.key.into() }),
        }
    }

    /// Replaces an object, if it has not changed since it was read.
    fn put(&self, operation: &Operation<'_>, object: &Value) -> Result<Value, StoreError> {
        match self.server.put(&operation.path, &operation.name, object) {
            Ok(written) => Ok(written),
            Err(Refusal::Missing(_) | Refusal::Conflict(_)) => match self.find(operation)? {
                None => Err(StoreError::Missing { key: operation.key.into() }),
                Some(_) => Err(StoreError::Changed { key: operation.key.into() }),
            },
            Err(refusal) => Err(self.failed(operation, "update", refusal)),
        }
    }

    /// Checks that the server has stored all fields that an administrator has set: a server with older definitions
    /// silently drops new fields. Fields of records that nodes write may be dropped: an older Calico does not need
    /// them.
    fn check_stored(
        &self,
        operation: &Operation<'_>,
        sent: &Value,
        stored: &Value,
    ) -> Result<(), StoreError> {
        let fields = sent["spec"].as_object().into_iter().flatten().map(|(field, _)| field.as_str());
        let dropped: Vec<&str> = fields.filter(|field| stored["spec"].get(field).is_none()).collect();
        if operation.kind.is_marked_when_deleted() || dropped.is_empty() {
            return Ok(());
        }
        let (object, dropped) = (operation.kind.plural(self.group), dropped.join(", "));
        let why = format!(
            "it was written, but {object}/{} lost {dropped}: the custom resource definitions on this server are from an older Calico",
            operation.name
        );
        Err(self.unavailable(operation.verb, operation.key, why))
    }

    fn revision(&self, operation: &Operation<'_>, object: &Value) -> Result<Revision, StoreError> {
        version(object).map_err(|why| self.unavailable(operation.verb, operation.key, why))
    }

    /// The revision of an object. The object is cached.
    fn cache_object(&self, operation: Operation<'_>, object: Value) -> Result<Revision, StoreError> {
        let revision = self.revision(&operation, &object)?;
        self.cache.put(operation.kind, operation.name, object);
        Ok(revision)
    }

    fn node(&self, key: &str, name: &str) -> Result<Option<Entry>, StoreError> {
        let fail = |why: String| self.unavailable("get", key, format!("get nodes/{name}: {why}"));
        if !name::is_valid(name) {
            return Ok(None);
        }
        let object = match self.server.get(NODES, name) {
            Ok(object) => object,
            Err(Refusal::Missing(_)) => return Ok(None),
            Err(refusal) => return Err(fail(refusal.message())),
        };
        record::node_entry(&object).map(Some).map_err(fail)
    }

    /// All nodes.
    fn nodes(&self, prefix: &str) -> Result<Vec<Entry>, StoreError> {
        let fail = |why: String| self.unavailable("list", prefix, format!("list nodes: {why}"));
        let nodes = self.server.list(NODES, None).map_err(|refusal| fail(refusal.message()))?;
        let mut entries = Vec::with_capacity(nodes.len());
        for node in &nodes {
            let entry = record::node_entry(node).map_err(fail)?;
            entries.extend(Some(entry).filter(|entry| entry.key.starts_with(prefix)));
        }
        entries.sort_by(|one, other| one.key.cmp(&other.key));
        Ok(entries)
    }

    /// Writes Calico's Node object into the annotations of the Kubernetes Node.
    fn write_node(&self, key: &str, name: &str, value: &[u8], at: Revision) -> Result<Revision, StoreError> {
        let fail = |why: String| self.unavailable("update", key, format!("update nodes/{name}: {why}"));
        let annotations = record::annotations(value).map_err(fail)?;
        let metadata = json!({ "resourceVersion": at.0.to_string(), "annotations": annotations });
        match self.server.patch_status(NODES, name, &json!({ "metadata": metadata })) {
            Ok(written) => version(&written).map_err(fail),
            Err(Refusal::Missing(_)) => Err(StoreError::Missing { key: key.into() }),
            Err(Refusal::Conflict(_)) => Err(StoreError::Changed { key: key.into() }),
            Err(refusal) => Err(fail(refusal.message())),
        }
    }
}

impl Store for KubernetesStore {
    fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        match Key::parse(key) {
            Some(Key::Node(name)) => return self.node(key, &name),
            Some(Key::Endpoint(namespace, name)) => {
                let endpoint = PodEndpoint::new(&self.server, key, &namespace, &name);
                return endpoint.map_or(Ok(None), |endpoint| endpoint.get());
            }
            // Profiles follow from namespaces and service accounts, and are never created.
            Some(Key::Profile(_)) => {
                return Ok(Some(Entry { key: key.into(), value: b"{}".into(), revision: Revision(0) }))
            }
            _ => {}
        }
        let operation = self.operation("get", key)?;
        let Some(object) = self.find(&operation)? else {
            return Ok(None);
        };
        let value = record::value(operation.kind, object.clone());
        let revision = self.cache_object(operation, object)?;
        Ok(Some(Entry { key: key.into(), value, revision }))
    }

    /// A list of one kind is consistent; several kinds are listed one after the other. Nodes are listed only if the
    /// prefix is explicitly for nodes.
    fn list(&self, prefix: &str) -> Result<Vec<Entry>, StoreError> {
        if prefix.starts_with(key::NODES) {
            return self.nodes(prefix);
        }
        let mut entries = Vec::new();
        for kind in Kind::ALL {
            for selector in kind.selectors(prefix) {
                let path = kind.path(self.group);
                let plural = kind.plural(self.group);
                let fail = |why| self.unavailable("list", prefix, format!("list {plural}: {why}"));
                let objects = match self.server.list(&path, selector.as_deref()) {
                    Ok(objects) => objects,
                    // Older versions of Calico do not have all kinds.
                    Err(Refusal::Missing(_)) => continue,
                    Err(refusal) => return Err(fail(refusal.message())),
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

    /// A block's key follows from its name, so only the metadata of blocks are read, without the deletion mark. The
    /// keys of other kinds are in the objects.
    fn keys(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        if !prefix.starts_with(key::BLOCKS) {
            return Ok(self.list(prefix)?.into_iter().map(|entry| entry.key).collect());
        }
        let listed = self.server.list_metadata(&Kind::Block.path(self.group));
        let objects = match listed {
            Err(Refusal::Missing(_)) => Vec::new(),
            listed => listed.map_err(|refusal| {
                let what = Kind::Block.plural(self.group);
                self.unavailable("list", prefix, format!("list {what}: {}", refusal.message()))
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
            // An endpoint is a part of its pod, and cannot be created without it.
            return Err(StoreError::Missing { key: key.into() });
        }
        let operation = self.operation("create", key)?;
        if !name::is_valid(&operation.name) {
            let why = format!("{:?} is not a valid name of a Kubernetes object", operation.name);
            return Err(self.unavailable("create", key, why));
        }
        let mut object = json!({ "metadata": {} });
        record::fill(&operation.parsed, self.group, value, &mut object)
            .map_err(|why| self.unavailable("create", key, why))?;
        for _ in 0..CREATE_ATTEMPTS {
            match self.server.post(&operation.path, &object) {
                Ok(created) => {
                    self.check_stored(&operation, &object, &created)?;
                    return self.cache_object(operation, created);
                }
                Err(Refusal::Conflict(_)) if self.find(&operation)?.is_none() => {}
                Err(Refusal::Conflict(_)) => break,
                Err(refusal) => return Err(self.failed(&operation, "create", refusal)),
            }
        }
        Err(StoreError::Exists { key: key.into() })
    }

    fn update(&self, key: &str, value: &[u8], revision: Revision) -> Result<Revision, StoreError> {
        if let Some(Key::Node(name)) = Key::parse(key) {
            return self.write_node(key, &name, value, revision);
        }
        if let Some(Key::Endpoint(namespace, name)) = Key::parse(key) {
            let endpoint = PodEndpoint::new(&self.server, key, &namespace, &name);
            let endpoint = endpoint.ok_or_else(|| StoreError::Missing { key: key.into() })?;
            return endpoint.update(value, revision);
        }
        let operation = self.operation("update", key)?;
        let mut object = self.find_revision(&operation, revision)?;
        remove_managed_fields(&mut object);
        record::fill(&operation.parsed, self.group, value, &mut object)
            .map_err(|why| self.unavailable("update", key, why))?;
        let written = self.put(&operation, &object)?;
        self.check_stored(&operation, &object, &written)?;
        self.cache_object(operation, written)
    }

    fn delete(&self, key: &str, revision: Revision) -> Result<(), StoreError> {
        if let Some(Key::Endpoint(namespace, name)) = Key::parse(key) {
            let endpoint = PodEndpoint::new(&self.server, key, &namespace, &name);
            let endpoint = endpoint.ok_or_else(|| StoreError::Missing { key: key.into() })?;
            return endpoint.delete(revision);
        }
        let operation = self.operation("delete", key)?;
        let object = self.find_revision(&operation, revision)?;
        match self.server.delete(&operation.path, &object) {
            Ok(()) => Ok(()),
            Err(Refusal::Missing(_)) => Err(StoreError::Missing { key: key.into() }),
            Err(Refusal::Conflict(_)) => match self.find(&operation)? {
                None => Err(StoreError::Missing { key: key.into() }),
                Some(_) => Err(StoreError::Changed { key: key.into() }),
            },
            Err(refusal) => Err(self.failed(&operation, "delete", refusal)),
        }
    }

    /// Only Calico reads the annotations of pods. It is looked for once: if it comes later, it takes the addresses of
    /// the pods without annotations from their status.
    fn has_endpoint_readers(&self) -> bool {
        *self.has_calico.get_or_init(|| {
            let (plural, name) = CLUSTER_INFORMATION;
            let found = self.server.get(&format!("/apis/{}/{plural}", self.group), name);
            !matches!(found, Err(Refusal::Missing(_)))
        })
    }

    fn publish_without_read(&self, key: &str, value: &[u8]) -> Result<bool, StoreError> {
        let Some(Key::Endpoint(namespace, name)) = Key::parse(key) else { return Ok(false) };
        let endpoint = PodEndpoint::new(&self.server, key, &namespace, &name);
        endpoint.map_or(Ok(false), |endpoint| endpoint.publish_without_read(value))
    }

    fn withdraw_without_read(&self, key: &str, container: &str) -> Result<bool, StoreError> {
        let Some(Key::Endpoint(namespace, name)) = Key::parse(key) else { return Ok(false) };
        let endpoint = PodEndpoint::new(&self.server, key, &namespace, &name);
        Ok(endpoint.is_some_and(|endpoint| endpoint.withdraw_without_read(container)))
    }

    fn follow(&self, prefixes: &[&str]) -> Result<Box<dyn Follow>, StoreError> {
        let follow = KubernetesFollow::new(self.kubeconfig.as_deref(), self.group, prefixes);
        Ok(Box::new(follow.map_err(|why| self.unavailable("follow", &prefixes.join(", "), why))?))
    }
}

/// Removes `managedFields`. The server keeps its own if a write has none.
fn remove_managed_fields(object: &mut Value) {
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
            Err(refusal) => return Err(format!("list its API groups: {}", refusal.message())),
        }
    }
    Err(format!(
        "it has ipamblocks neither in {} nor in {}: are Calico's custom resources installed?",
        ApiGroup::V1,
        ApiGroup::V3
    ))
}
