//! Watches of a kind that the server refuses.

use std::time::Duration;

use futures::StreamExt;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::{watcher, WatchStreamExt};
use kube::Api;
use podwire_kubernetes::{Backoff, ClientOptions};
use podwire_test_servers::StandInApiServer;

/// A custom resource that is not defined, or that the agent must not list, is not requested ten times a second.
#[tokio::test]
async fn a_list_that_fails_is_requested_ever_more_rarely() {
    let server = StandInApiServer::start().await;
    server.state().refuse = Some(404);
    let options = ClientOptions { api_url: Some(server.url.clone()), ..ClientOptions::default() };
    let kind = GroupVersionKind::gvk("policy.networking.k8s.io", "v1alpha2", "ClusterNetworkPolicy");
    let api: Api<DynamicObject> =
        Api::all_with(options.client().await.unwrap(), &ApiResource::from_gvk(&kind));
    let events = watcher(api, watcher::Config::default()).backoff(Backoff::new());
    let failures = events.filter(|event| std::future::ready(event.is_err())).for_each(|_| async {});
    tokio::time::timeout(Duration::from_secs(8), failures).await.unwrap_err();
    // Four while the delay grows to 1.5 s, then one every 0.75 s at most.
    let requests = server.state().requests.len();
    assert!((4..=16).contains(&requests), "{requests} requests in 8 s");
}
