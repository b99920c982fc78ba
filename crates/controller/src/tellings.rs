//! Telling the administrator: events of Node objects, as `kubectl describe node` shows them, and the log.

use std::time::Duration;

use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::Client;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::warn;

use crate::object::reference;
use crate::register::Remark;

/// So many may wait to be told: an API server that is slow must not fill our memory.
const WAITING: usize = 1000;
const PATIENCE: Duration = Duration::from_secs(10);
/// The API server refuses longer notes.
const LONGEST: usize = 1000;

/// Where remarks go.
#[derive(Clone)]
pub(crate) struct Tellings(mpsc::Sender<Remark>);

impl Tellings {
    /// Starts a task that tells them one by one.
    pub fn start(client: Client, identity: &str) -> Tellings {
        let reporter = Reporter { controller: "podwire-controller".into(), instance: Some(identity.into()) };
        let recorder = Recorder::new(client, reporter);
        let (sender, mut remarks) = mpsc::channel(WAITING);
        tokio::spawn(async move {
            while let Some(remark) = remarks.recv().await {
                publish(&recorder, &remark).await;
            }
        });
        Tellings(sender)
    }

    pub fn tell(&self, remark: Remark) {
        warn!(node = remark.name, reason = remark.reason.as_str(), "{}", remark.note);
        if self.0.try_send(remark).is_err() {
            warn!("too many events wait for the API server: this one is only in the log");
        }
    }
}

async fn publish(recorder: &Recorder, remark: &Remark) {
    let event = Event {
        type_: EventType::Warning,
        reason: remark.reason.as_str().into(),
        note: Some(remark.note.chars().take(LONGEST).collect()),
        action: "AssignPodCIDR".into(),
        secondary: None,
    };
    let about = reference(&remark.name, &remark.uid);
    match timeout(PATIENCE, recorder.publish(&event, &about)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            warn!(node = remark.name, error = podwire_kubernetes::describe(&error), "the event is not told")
        }
        Err(_) => warn!(node = remark.name, "the event is not told: no answer in {PATIENCE:?}"),
    }
}
