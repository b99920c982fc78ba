//! Follows objects: each kind is listed once and then watched. If the version is not available any more, the kind is
//! listed again and compared.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream, SelectAll, StreamExt};
use futures::FutureExt;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::watcher::{self, Event};
use kube::runtime::WatchStreamExt;
use kube::{Api, Client, Resource};
use podwire_block_ipam::key;
use podwire_block_ipam::store::{Change, Entry, Follow, Known, StoreError};
use podwire_kubernetes::Fields::{self, All, Only};
use podwire_kubernetes::{is_missing_kind, Backoff, PartialObject, Selection};
use serde::de::DeserializeOwned;
use serde::Serialize;
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::time::{timeout_at, Instant};

use crate::group::ApiGroup;
use crate::kind::Kind;
use crate::record;
use crate::server::Server;

/// The source of an event: Kubernetes nodes, or a kind of Calico's objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Nodes,
    Records(Kind),
}

/// The fields of a Kubernetes node from which Calico's Node object is made. Reports of the status, which kubelets send
/// periodically, with all images of the node, concern none of them.
#[derive(Clone, Debug)]
struct NodeFields;

impl Selection for NodeFields {
    const FIELDS: Fields = Only(&[(
        "metadata",
        Only(&[
            ("name", All),
            ("uid", All),
            ("resourceVersion", All),
            ("creationTimestamp", All),
            ("labels", All),
            ("annotations", All),
        ]),
    )]);
}

type Events = BoxStream<'static, watcher::Result<Event<Value>>>;
type SourceEvent = (Source, watcher::Result<Event<Value>>);

pub(crate) struct KubernetesFollow {
    name: String,
    runtime: Arc<Runtime>,
    prefixes: Vec<String>,
    streams: SelectAll<BoxStream<'static, SourceEvent>>,
    /// Sources whose list is not complete yet.
    unlisted: BTreeSet<Source>,
    /// The incomplete lists.
    lists: BTreeMap<Source, Vec<Entry>>,
    known: Known,
    /// Changes that wait until all lists are complete.
    changes: Vec<Change>,
    has_reported: bool,
}

impl KubernetesFollow {
    pub(crate) fn new(
        kubeconfig: Option<&Path>,
        group: ApiGroup,
        prefixes: &[&str],
    ) -> Result<KubernetesFollow, String> {
        let (name, runtime, client) = Server::new(kubeconfig)?.into_parts();
        let is_followed = |kind: &Kind| prefixes.iter().any(|prefix| !kind.selectors(prefix).is_empty());
        let records = Kind::ALL.into_iter().filter(is_followed).map(Source::Records);
        let nodes = prefixes.iter().any(|prefix| prefix.starts_with(key::NODES)).then_some(Source::Nodes);
        let sources: BTreeSet<Source> = records.chain(nodes).collect();
        let mut streams = SelectAll::new();
        for source in &sources {
            let source = *source;
            let (client, resource) = (client.clone(), source.resource(group));
            let events = match source {
                Source::Nodes => watch::<PartialObject<NodeFields>>(client, &resource),
                Source::Records(_) => watch::<DynamicObject>(client, &resource),
            };
            // Each event is paired with its source.
            streams.push(stream::repeat(source).zip(events).boxed());
        }
        Ok(KubernetesFollow {
            name,
            runtime: Arc::new(runtime),
            prefixes: prefixes.iter().map(ToString::to_string).collect(),
            streams,
            unlisted: sources,
            lists: BTreeMap::new(),
            known: Known::default(),
            changes: Vec::new(),
            has_reported: false,
        })
    }

    /// Handles an event. An error is the server's message; the watch continues by itself.
    fn handle_event(&mut self, (source, event): SourceEvent) -> Result<(), String> {
        match event {
            Ok(Event::Init) => drop(self.lists.insert(source, Vec::new())),
            Ok(Event::InitApply(object)) => {
                if let Some(Change::Put(entry)) = self.change(source, object)? {
                    self.lists.entry(source).or_default().push(entry);
                }
            }
            Ok(Event::InitDone) => self.complete(source),
            Ok(Event::Apply(object)) => {
                let change = self.change(source, object)?;
                self.add(change);
            }
            Ok(Event::Delete(object)) => {
                let deleted = match self.change(source, object)? {
                    Some(Change::Put(entry)) => Some(Change::Deleted(entry.key)),
                    other => other,
                };
                self.add(deleted);
            }
            // Older versions of Calico do not have all kinds.
            Err(error) if is_missing_kind(&error) => {
                self.lists.remove(&source);
                self.complete(source);
            }
            Err(error) => return Err(format!("{}: {error}", source.name())),
        }
        Ok(())
    }

    fn complete(&mut self, source: Source) {
        let listed = self.lists.remove(&source).unwrap_or_default();
        self.changes.extend(self.known.compare(source.roots(), listed));
        self.unlisted.remove(&source);
    }

    fn add(&mut self, change: Option<Change>) {
        if let Some(change) = change {
            self.known.record(&change);
            self.changes.push(change);
        }
    }

    /// The change of an object, if its key is followed. A marked object is deleted.
    fn change(&self, source: Source, object: Value) -> Result<Option<Change>, String> {
        let fail = |why: String| format!("{}: {why}", source.name());
        let (is_deleted, entry) = match source {
            Source::Nodes => (false, record::node_entry(&object).map(Some)),
            Source::Records(kind) => {
                let is_deleted = kind.is_marked_when_deleted() && record::is_marked(&object);
                (is_deleted, record::entry(kind, object))
            }
        };
        let is_followed = |entry: &Entry| self.prefixes.iter().any(|prefix| entry.key.starts_with(prefix));
        let change = |entry: Entry| if is_deleted { Change::Deleted(entry.key) } else { Change::Put(entry) };
        Ok(entry.map_err(fail)?.filter(is_followed).map(change))
    }

    /// The pending changes, once all lists are complete.
    fn take_changes(&mut self) -> Option<Vec<Change>> {
        if !self.unlisted.is_empty() || (self.has_reported && self.changes.is_empty()) {
            return None;
        }
        self.has_reported = true;
        Some(std::mem::take(&mut self.changes))
    }
}

impl Follow for KubernetesFollow {
    fn wait(&mut self, timeout: Duration) -> Result<Option<Vec<Change>>, StoreError> {
        let mut streams = std::mem::take(&mut self.streams);
        let runtime = self.runtime.clone();
        let mut wait = |this: &mut KubernetesFollow| -> Result<Option<Vec<Change>>, String> {
            let until = Instant::now() + timeout;
            loop {
                let Ok(Some(first)) = runtime.block_on(async { timeout_at(until, streams.next()).await })
                else {
                    return Ok(this.take_changes());
                };
                this.handle_event(first)?;
                while let Some(Some(next)) = runtime.block_on(async { streams.next().now_or_never() }) {
                    this.handle_event(next)?;
                }
                if let Some(changes) = this.take_changes() {
                    return Ok(Some(changes));
                }
            }
        };
        let changes = wait(self);
        self.streams = streams;
        changes.map_err(|why| StoreError::Unavailable {
            store: self.name.clone(),
            verb: "follow",
            key: self.prefixes.join(", "),
            why,
        })
    }
}

impl Source {
    fn resource(self, group: ApiGroup) -> ApiResource {
        match self {
            Source::Nodes => {
                ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("", "v1", "Node"), "nodes")
            }
            Source::Records(kind) => {
                let (name, version) = group.name().split_once('/').unwrap_or((group.name(), "v1"));
                let gvk = GroupVersionKind::gvk(name, version, kind.name(group));
                ApiResource::from_gvk_with_plural(&gvk, kind.plural(group))
            }
        }
    }

    fn roots(self) -> &'static [&'static str] {
        match self {
            Source::Nodes => &[key::NODES],
            Source::Records(kind) => kind.roots(),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Source::Nodes => "nodes",
            Source::Records(kind) => kind.plural(ApiGroup::V1),
        }
    }
}

fn watch<K>(client: Client, resource: &ApiResource) -> Events
where
    K: Resource<DynamicType = ApiResource> + Clone + Debug + DeserializeOwned + Serialize + Send + 'static,
{
    let api: Api<K> = Api::all_with(client, resource);
    let events = watcher::watcher(api, watcher::Config::default()).backoff(Backoff::new());
    events.map(|event| event.map(to_value)).boxed()
}

/// An event with the object as a value. An object that was read from JSON is always a value.
fn to_value<K: Serialize>(event: Event<K>) -> Event<Value> {
    let value = |object: K| serde_json::to_value(object).unwrap_or_default();
    match event {
        Event::Apply(object) => Event::Apply(value(object)),
        Event::Delete(object) => Event::Delete(value(object)),
        Event::InitApply(object) => Event::InitApply(value(object)),
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
    }
}
