//! Services from the Kubernetes API: one watch for each kind.

use std::time::Duration;

use futures::{pin_mut, StreamExt};
use kube::api::{ApiResource, GroupVersionKind, ListParams};
use kube::runtime::watcher::{self, Config, Event};
use kube::runtime::WatchStreamExt;
use kube::{Api, Client};
use podwire_kubernetes::{
    is_missing_kind, Backoff, ClientOptions, PartialObject, Selection, REQUEST_TIMEOUT,
};
use podwire_services::{Kind, ObjectName, ServicesAgent, Update};
use serde_json::Value;
use tracing::{info, warn};

use super::fields::{NodeFields, ServiceCidrFields, ServiceFields, SliceFields};
use crate::Result;

/// Services of another proxy, and headless ones, as kube-proxy excludes them.
const LABELS: &str = "!service.kubernetes.io/service-proxy-name,!service.kubernetes.io/headless";

/// How often the agent looks for a kind that the server does not have: servers before Kubernetes 1.33 have no ServiceCIDR.
const MISSING_KIND: Duration = Duration::from_secs(60);

/// Sends the objects of all kinds and their changes to the thread. Returns only on an error.
pub(super) async fn watch(options: &ClientOptions, node: &str, agent: &ServicesAgent) -> Result<()> {
    let client = &options.client().await?;
    let labelled = || Config::default().labels(LABELS);
    let own_node = Config::default().fields(&own_node(node));
    tokio::try_join!(
        watch_kind::<ServiceFields>(client, Kind::Service, labelled(), agent),
        watch_kind::<SliceFields>(client, Kind::EndpointSlice, labelled(), agent),
        watch_kind::<NodeFields>(client, Kind::Node, own_node, agent),
        watch_kind::<ServiceCidrFields>(client, Kind::ServiceCidr, Config::default(), agent),
    )?;
    Ok(())
}

/// Lists the objects of all kinds.
pub(super) async fn list(options: &ClientOptions, node: &str) -> Result<Vec<Value>> {
    let client = &options.client().await?;
    let labelled = ListParams::default().labels(LABELS);
    let own_node = ListParams::default().fields(&own_node(node));
    let all = ListParams::default();
    let (services, slices, nodes, cidrs) = tokio::try_join!(
        list_kind::<ServiceFields>(client, Kind::Service, &labelled),
        list_kind::<SliceFields>(client, Kind::EndpointSlice, &labelled),
        list_kind::<NodeFields>(client, Kind::Node, &own_node),
        list_kind::<ServiceCidrFields>(client, Kind::ServiceCidr, &all),
    )?;
    Ok([services, slices, nodes, cidrs].concat())
}

async fn list_kind<S: Selection>(client: &Client, kind: Kind, params: &ListParams) -> Result<Vec<Value>> {
    let api: Api<PartialObject<S>> = Api::all_with(client.clone(), &resource(kind));
    let listed = tokio::time::timeout(REQUEST_TIMEOUT, api.list(params)).await;
    let failed = |why: String| podwire_kubernetes::Error { doing: format!("list {}", kind.name().1), why };
    match listed {
        Ok(Ok(objects)) => Ok(objects.items.into_iter().map(|object| value(kind, object)).collect()),
        Ok(Err(kube::Error::Api(status))) if kind == Kind::ServiceCidr && status.code == 404 => {
            Ok(Vec::new())
        }
        Ok(Err(error)) => Err(failed(podwire_kubernetes::describe(&error)).into()),
        Err(_) => Err(failed(format!("no answer in {} s", REQUEST_TIMEOUT.as_secs())).into()),
    }
}

fn own_node(node: &str) -> String {
    format!("metadata.name={node}")
}

async fn watch_kind<S: Selection>(
    client: &Client,
    kind: Kind,
    config: Config,
    agent: &ServicesAgent,
) -> Result<()> {
    let api: Api<PartialObject<S>> = Api::all_with(client.clone(), &resource(kind));
    let events = watcher::watcher(api, config).backoff(Backoff::new());
    pin_mut!(events);
    let (mut listed, mut problem) = (Vec::new(), String::new());
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(object)) => listed.push(value(kind, object)),
            Ok(Event::InitDone) => {
                agent.update(Update::Listed(kind, std::mem::take(&mut listed)))?;
                if !std::mem::take(&mut problem).is_empty() {
                    info!(?kind, "watch restored");
                }
            }
            Ok(Event::Apply(object)) => agent.update(Update::Changed(value(kind, object)))?,
            Ok(Event::Delete(object)) => {
                agent.update(Update::Deleted(kind, ObjectName::of(kind, &value(kind, object))))?;
            }
            Err(error) if kind == Kind::ServiceCidr && is_missing_kind(&error) => {
                agent.update(Update::Listed(kind, Vec::new()))?;
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

fn resource(kind: Kind) -> ApiResource {
    let (version, name) = kind.name();
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, name))
}

/// The items of a list have no apiVersion and kind.
fn value<S>(kind: Kind, object: PartialObject<S>) -> Value {
    let mut value = object.into_value();
    let (version, name) = kind.name();
    (value["apiVersion"], value["kind"]) = (version.into(), name.into());
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_the_plural_of_the_api() {
        let plurals = Kind::ALL.map(|kind| resource(kind).plural);
        assert_eq!(plurals, ["services", "endpointslices", "nodes", "servicecidrs"]);
        assert_eq!(resource(Kind::EndpointSlice).group, "discovery.k8s.io");
    }
}
