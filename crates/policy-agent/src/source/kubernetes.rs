//! Policies from the Kubernetes API: one watch for each kind that policies depend on.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use futures::{pin_mut, StreamExt};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::watcher::{self, Event};
use kube::runtime::WatchStreamExt;
use kube::{Api, Client, Resource};
use podwire_kubernetes::{is_missing_kind, Backoff, ClientOptions, PartialObject};
use podwire_policy::Snapshot;
use serde::de::DeserializeOwned;
use serde::Serialize;
use tracing::{info, warn};

use self::fields::{NamespaceFields, NodeFields, PodFields};
use crate::{Kind, PolicyAgent, Result, Update};

mod fields;

/// How often the agent looks for a kind that the server does not have. It has no right to watch the definitions.
const MISSING_KIND: Duration = Duration::from_secs(10);

/// Sends the objects of all kinds and their changes to the agent. Returns only on an error.
pub(crate) async fn watch(options: &ClientOptions, agent: &PolicyAgent) -> Result<()> {
    let client = options.client().await?;
    let (client, all) = (&client, Kind::ALL);
    let [pods, namespaces, nodes, policies, cluster_policies] = all;
    // Policies are decoded whole: an unknown field is reported.
    tokio::try_join!(
        watch_kind::<PartialObject<PodFields>>(client, pods, agent),
        watch_kind::<PartialObject<NamespaceFields>>(client, namespaces, agent),
        watch_kind::<PartialObject<NodeFields>>(client, nodes, agent),
        watch_kind::<DynamicObject>(client, policies, agent),
        watch_kind::<DynamicObject>(client, cluster_policies, agent),
    )?;
    Ok(())
}

fn resource(kind: Kind) -> ApiResource {
    let (group, version, name) = match kind {
        Kind::Pod => ("", "v1", "Pod"),
        Kind::Namespace => ("", "v1", "Namespace"),
        Kind::Node => ("", "v1", "Node"),
        Kind::NetworkPolicy => ("networking.k8s.io", "v1", "NetworkPolicy"),
        Kind::ClusterNetworkPolicy => ("policy.networking.k8s.io", "v1alpha2", "ClusterNetworkPolicy"),
    };
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, name))
}

async fn watch_kind<K>(client: &Client, kind: Kind, agent: &PolicyAgent) -> Result<()>
where
    K: Resource<DynamicType = ApiResource> + Clone + Debug + DeserializeOwned + Serialize + Send + 'static,
{
    let api: Api<K> = Api::all_with(client.clone(), &resource(kind));
    let events = watcher::watcher(api, watcher::Config::default()).backoff(Backoff::new());
    pin_mut!(events);
    let (mut listed, mut known) = (Snapshot::new(), Known::default());
    let (mut problem, mut is_missing) = (String::new(), false);
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed = Snapshot::new(),
            Ok(Event::InitApply(object)) => add(&mut listed, kind, object),
            Ok(Event::InitDone) => {
                is_missing = false;
                known.list(&listed);
                agent.update(Update::Listed(kind, std::mem::take(&mut listed)))?;
                if !std::mem::take(&mut problem).is_empty() {
                    info!(?kind, "watch restored");
                }
            }
            Ok(Event::Apply(object)) => {
                let mut one = Snapshot::new();
                add(&mut one, kind, object);
                // Most events are heartbeats of kubelets, which change nothing that policies depend on.
                if known.update(&one) {
                    agent.update(Update::Changed(one))?;
                }
            }
            Ok(Event::Delete(object)) => {
                let meta = object.meta();
                let name = full_name(meta.namespace.as_deref(), meta.name.as_deref());
                known.remove(&name);
                agent.update(Update::Deleted(kind, name))?;
            }
            // The cluster has no ClusterNetworkPolicy CRD, so it has no such policies. The CRD may be created later.
            Err(error) if kind == Kind::ClusterNetworkPolicy && is_missing_kind(&error) => {
                if !std::mem::replace(&mut is_missing, true) {
                    let none = Snapshot::new();
                    known.list(&none);
                    agent.update(Update::Listed(kind, none))?;
                }
                tokio::time::sleep(MISSING_KIND).await;
            }
            Err(error) => {
                let text = error.to_string();
                if text != problem {
                    warn!(?kind, %error, "watch failed; the last known objects stay in force");
                    problem = text;
                }
            }
        }
    }
    Ok(())
}

/// Adds an object. One that cannot be read is left out, and the others stay in force.
fn add<K: Resource + Serialize>(to: &mut Snapshot, kind: Kind, mut object: K) {
    object.meta_mut().managed_fields = None;
    let read = serde_json::to_value(object).map_err(|error| error.to_string()).and_then(|mut value| {
        // The items of a list have no apiVersion and kind.
        let ApiResource { api_version, kind, .. } = resource(kind);
        (value["apiVersion"], value["kind"]) = (api_version.into(), kind.into());
        to.add(value).map_err(|error| error.to_string())
    });
    if let Err(error) = read {
        warn!(%error, "object ignored");
    }
}

/// `name`, or `namespace/name`.
fn full_name(namespace: Option<&str>, name: Option<&str>) -> String {
    let name = name.unwrap_or_default();
    match namespace {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    }
}

/// The objects of a kind that the agent was sent: a hash of each, because the agent has the objects themselves. The
/// key of the hash is random, so two different states of an object have the same one in 1 of 2⁶⁴ cases.
#[derive(Default)]
struct Known {
    key: RandomState,
    hashes: HashMap<String, u64>,
}

impl Known {
    fn list(&mut self, all: &Snapshot) {
        self.hashes = self.hashes_of(all);
    }

    /// Takes changed objects. Returns whether policies may depend on the changes.
    fn update(&mut self, changed: &Snapshot) -> bool {
        let hashes = self.hashes_of(changed).into_iter();
        hashes.fold(false, |differs, (name, hash)| self.hashes.insert(name, hash) != Some(hash) || differs)
    }

    fn remove(&mut self, name: &str) {
        self.hashes.remove(name);
    }

    fn hashes_of(&self, snapshot: &Snapshot) -> HashMap<String, u64> {
        let entry = |object: serde_json::Value| {
            let text = |field: &str| object["metadata"][field].as_str().filter(|text| !text.is_empty());
            (full_name(text("namespace"), text("name")), self.key.hash_one(object.to_string()))
        };
        snapshot.objects().map(entry).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_item_without_a_kind_gets_the_kind_of_its_list() {
        let mut snapshot = Snapshot::new();
        let object = json!({ "metadata": { "name": "web", "namespace": "shop" }, "status": { "podIPs": [{ "ip": "10.0.0.2" }] } });
        let object: PartialObject<PodFields> = serde_json::from_value(object).unwrap();
        add(&mut snapshot, Kind::Pod, object);
        assert_eq!(snapshot.pod("shop/web").unwrap().addresses().len(), 1);
    }
}
