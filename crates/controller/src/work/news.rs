//! Following the nodes: first all of them, then every change. After any trouble, all of them again.

use std::pin::pin;

use futures::StreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, ResourceExt};
use podwire_kubernetes::Backoff;
use tokio::sync::mpsc::Sender;

use crate::object::{NodeObject, Sighting};

/// A watch is asked for anew after so many seconds: a connection that died without a word is noticed then.
const WATCH_SECONDS: u32 = 120;

/// What is heard of nodes.
#[derive(Debug)]
pub(super) enum News {
    /// These are all.
    All(Vec<Sighting>),
    /// One was made, or changed.
    Seen(Sighting),
    /// One was deleted.
    Gone { name: String, uid: String },
    /// Nothing is heard any more, until there are all again.
    Broken(String),
}

/// Tells all news, for ever.
pub(super) async fn follow(nodes: Api<NodeObject>, sender: Sender<News>) {
    let mut backoff = Backoff::new();
    loop {
        let mut events =
            pin!(watcher::watcher(nodes.clone(), watcher::Config::default().timeout(WATCH_SECONDS)));
        let mut all = Vec::new();
        while let Some(event) = events.next().await {
            let news = match event {
                Ok(Event::Init) => {
                    all.clear();
                    continue;
                }
                Ok(Event::InitApply(node)) => {
                    all.push(node.into());
                    continue;
                }
                Ok(Event::InitDone) => {
                    backoff.reset();
                    News::All(std::mem::take(&mut all))
                }
                Ok(Event::Apply(node)) => News::Seen(node.into()),
                Ok(Event::Delete(node)) => {
                    News::Gone { name: node.name_any(), uid: node.uid().unwrap_or_default() }
                }
                Err(error) => News::Broken(format!("kubernetes: watch nodes: {}", words(&error))),
            };
            let broken = matches!(news, News::Broken(_));
            if sender.send(news).await.is_err() {
                return;
            }
            if broken {
                break;
            }
        }
        backoff.wait().await;
    }
}

/// The API server's own sentence if there is one.
fn words(error: &watcher::Error) -> String {
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(cause) | WatchStartFailed(cause) | WatchFailed(cause) => {
            podwire_kubernetes::describe(cause)
        }
        WatchError(status) => format!("{} ({})", status.message, status.code),
        other => other.to_string(),
    }
}
