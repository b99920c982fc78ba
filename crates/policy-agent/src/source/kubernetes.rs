//! Policies from the Kubernetes API: every kind that they depend on is followed.

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

/// Tells the agent all that it learns, for ever.
pub(crate) async fn watch(options: &ClientOptions, agent: &PolicyAgent) -> Result<()> {
    let client = options.client().await?;
    let all = Kind::ALL.map(|kind| follow_kind(client.clone(), kind, agent));
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

async fn follow_kind(client: Client, kind: Kind, agent: &PolicyAgent) -> Result<()> {
    let api: Api<DynamicObject> = Api::all_with(client, &resource(kind));
    let events = watcher::watcher(api, watcher::Config::default()).backoff(Backoff::new());
    pin_mut!(events);
    let mut listed = Snapshot::new();
    let mut trouble = String::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed = Snapshot::new(),
            Ok(Event::InitApply(object)) => add(&mut listed, kind, object),
            Ok(Event::InitDone) => {
                agent.update(Update::Listed(kind, std::mem::take(&mut listed)))?;
                if !std::mem::take(&mut trouble).is_empty() {
                    info!(?kind, "the API server answers again");
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
            // A cluster without these policies has not been told of their kind: there are none.
            Err(error) if kind == Kind::ClusterNetworkPolicy && is_unknown(&error) => {
                agent.update(Update::Listed(kind, Snapshot::new()))?;
            }
            Err(error) => {
                let text = error.to_string();
                if text != trouble {
                    warn!(?kind, "what is known stays enforced, the API server does not tell more: {text}");
                    trouble = text;
                }
            }
        }
    }
    Ok(())
}

fn is_unknown(error: &watcher::Error) -> bool {
    let (watcher::Error::InitialListFailed(source) | watcher::Error::WatchStartFailed(source)) = error else {
        return false;
    };
    matches!(source, kube::Error::Api(status) if status.code == NOT_FOUND)
}

/// What the server took is readable; of one that is not all the same, the others are enforced.
fn add(to: &mut Snapshot, kind: Kind, mut object: DynamicObject) {
    object.metadata.managed_fields = None;
    // In a list the server does not say of each what it is.
    let ApiResource { api_version, kind, .. } = resource(kind);
    object.types = Some(TypeMeta { api_version, kind });
    let read = serde_json::to_value(object).map_err(|error| error.to_string());
    if let Err(why) = read.and_then(|value| to.add(value).map_err(|error| error.to_string())) {
        warn!("an object is left out: {why}");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_list_does_not_call_by_its_kind_is_known_all_the_same() {
        let mut snapshot = Snapshot::new();
        let object = json!({ "metadata": { "name": "web", "namespace": "shop" }, "status": { "podIPs": [{ "ip": "10.0.0.2" }] } });
        add(&mut snapshot, Kind::Pod, serde_json::from_value(object).unwrap());
        assert_eq!(snapshot.pod("shop/web").unwrap().addresses().len(), 1);
    }
}
