//! Policies from the Kubernetes API: one watch for each kind that policies depend on.

use std::time::Duration;

use futures::{pin_mut, StreamExt};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, TypeMeta};
use kube::runtime::watcher::{self, Event};
use kube::runtime::WatchStreamExt;
use kube::{Api, Client};
use podwire_kubernetes::{Backoff, ClientOptions};
use podwire_policy::Snapshot;
use tracing::{info, warn};

use crate::{Kind, PolicyAgent, Result, Update};

const NOT_FOUND: u16 = 404;

/// How often the agent looks for a kind that the server does not have. It has no right to watch the definitions.
const MISSING_KIND: Duration = Duration::from_secs(10);

/// Sends the objects of all kinds and their changes to the agent. Returns only on an error.
pub(crate) async fn watch(options: &ClientOptions, agent: &PolicyAgent) -> Result<()> {
    let client = options.client().await?;
    let all = Kind::ALL.map(|kind| watch_kind(client.clone(), kind, agent));
    let [pods, namespaces, nodes, policies, cluster_policies] = all;
    tokio::try_join!(pods, namespaces, nodes, policies, cluster_policies)?;
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

async fn watch_kind(client: Client, kind: Kind, agent: &PolicyAgent) -> Result<()> {
    let api: Api<DynamicObject> = Api::all_with(client, &resource(kind));
    let events = watcher::watcher(api, watcher::Config::default()).backoff(Backoff::new());
    pin_mut!(events);
    let mut listed = Snapshot::new();
    let (mut problem, mut is_missing) = (String::new(), false);
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed = Snapshot::new(),
            Ok(Event::InitApply(object)) => add(&mut listed, kind, object),
            Ok(Event::InitDone) => {
                is_missing = false;
                agent.update(Update::Listed(kind, std::mem::take(&mut listed)))?;
                if !std::mem::take(&mut problem).is_empty() {
                    info!(?kind, "watch restored");
                }
            }
            Ok(Event::Apply(object)) => {
                let mut one = Snapshot::new();
                add(&mut one, kind, object);
                agent.update(Update::Changed(one))?;
            }
            Ok(Event::Delete(object)) => {
                let name = object.metadata.name.unwrap_or_default();
                let name = match object.metadata.namespace {
                    Some(namespace) => format!("{namespace}/{name}"),
                    None => name,
                };
                agent.update(Update::Deleted(kind, name))?;
            }
            // The cluster has no ClusterNetworkPolicy CRD, so it has no such policies. The CRD may be created later.
            Err(error) if kind == Kind::ClusterNetworkPolicy && is_missing_kind(&error) => {
                if !std::mem::replace(&mut is_missing, true) {
                    agent.update(Update::Listed(kind, Snapshot::new()))?;
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

fn is_missing_kind(error: &watcher::Error) -> bool {
    let (watcher::Error::InitialListFailed(source) | watcher::Error::WatchStartFailed(source)) = error else {
        return false;
    };
    matches!(source, kube::Error::Api(status) if status.code == NOT_FOUND)
}

/// Adds an object. One that cannot be read is left out, and the others stay in force.
fn add(to: &mut Snapshot, kind: Kind, mut object: DynamicObject) {
    object.metadata.managed_fields = None;
    // The items of a list have no apiVersion and kind.
    let ApiResource { api_version, kind, .. } = resource(kind);
    object.types = Some(TypeMeta { api_version, kind });
    let read = serde_json::to_value(object).map_err(|error| error.to_string());
    if let Err(error) = read.and_then(|value| to.add(value).map_err(|error| error.to_string())) {
        warn!(%error, "object ignored");
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
        add(&mut snapshot, Kind::Pod, serde_json::from_value(object).unwrap());
        assert_eq!(snapshot.pod("shop/web").unwrap().addresses().len(), 1);
    }
}
