//! Watches the nodes: a list first, then every change. After an error, a new list.

use std::pin::pin;

use futures::StreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, ResourceExt};
use podwire_kubernetes::Backoff;
use tokio::sync::mpsc::Sender;

use crate::node_object::{NodeObject, NodeState};

/// A watch is renewed after this time, so that a connection that died silently is noticed.
const WATCH_SECONDS: u32 = 120;

/// A change of the nodes.
#[derive(Debug)]
pub(super) enum NodeChange {
    /// All nodes that exist.
    Listed(Vec<NodeState>),
    /// A node was created or changed.
    Updated(NodeState),
    Deleted {
        name: String,
        uid: String,
    },
    /// The watch failed. No change is reported until the next list.
    Failed(String),
}

/// Sends all changes until the receiver is dropped.
pub(super) async fn watch(nodes: Api<NodeObject>, sender: Sender<NodeChange>) {
    let mut backoff = Backoff::new();
    loop {
        let config = watcher::Config::default().timeout(WATCH_SECONDS);
        let mut events = pin!(watcher::watcher(nodes.clone(), config));
        let mut listed = Vec::new();
        while let Some(event) = events.next().await {
            let change = match event {
                Ok(Event::Init) => {
                    listed.clear();
                    continue;
                }
                Ok(Event::InitApply(node)) => {
                    listed.push(node.into());
                    continue;
                }
                Ok(Event::InitDone) => {
                    backoff.reset();
                    NodeChange::Listed(std::mem::take(&mut listed))
                }
                Ok(Event::Apply(node)) => NodeChange::Updated(node.into()),
                Ok(Event::Delete(node)) => {
                    NodeChange::Deleted { name: node.name_any(), uid: node.uid().unwrap_or_default() }
                }
                Err(error) => NodeChange::Failed(format!("kubernetes: watch nodes: {}", describe(&error))),
            };
            let has_failed = matches!(change, NodeChange::Failed(_));
            if sender.send(change).await.is_err() {
                return;
            }
            if has_failed {
                break;
            }
        }
        backoff.wait().await;
    }
}

/// The API server's message, if there is one.
fn describe(error: &watcher::Error) -> String {
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(cause) | WatchStartFailed(cause) | WatchFailed(cause) => {
            podwire_kubernetes::describe(cause)
        }
        WatchError(status) => format!("{} ({})", status.message, status.code),
        other => other.to_string(),
    }
}
