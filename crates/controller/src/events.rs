//! Warnings for the administrator: Kubernetes events of Node objects, as `kubectl describe node` shows them, and the
//! log.

use std::time::Duration;

use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::Client;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::warn;

use crate::node_object::reference;

/// Events that wait for the API server: a slow server must not fill the memory.
const QUEUE_LENGTH: usize = 1000;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The API server rejects longer notes.
const MAX_NOTE_LENGTH: usize = 1000;

/// A warning about a node. Each is sent once, not with every retry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeEvent {
    pub name: String,
    pub uid: String,
    pub reason: Reason,
    pub note: String,
}

/// The reason of an event. The first two are those of the NodeIpamController.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    CidrNotAvailable,
    CidrAssignmentFailed,
    InvalidPodCidr,
    DuplicatePodCidr,
}

impl Reason {
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::CidrNotAvailable => "CIDRNotAvailable",
            Reason::CidrAssignmentFailed => "CIDRAssignmentFailed",
            Reason::InvalidPodCidr => "InvalidPodCIDR",
            Reason::DuplicatePodCidr => "DuplicatePodCIDR",
        }
    }
}

/// Sends events in the background.
#[derive(Clone)]
pub(crate) struct EventSender(mpsc::Sender<NodeEvent>);

impl EventSender {
    /// Starts the task that sends events one by one.
    pub fn start(client: Client, identity: &str) -> EventSender {
        let reporter = Reporter { controller: "podwire-controller".into(), instance: Some(identity.into()) };
        let recorder = Recorder::new(client, reporter);
        let (sender, mut events) = mpsc::channel(QUEUE_LENGTH);
        tokio::spawn(async move {
            while let Some(event) = events.recv().await {
                publish(&recorder, &event).await;
            }
        });
        EventSender(sender)
    }

    /// Logs an event and queues it for the API server.
    pub fn send(&self, event: NodeEvent) {
        warn!(node = event.name, reason = event.reason.as_str(), "{}", event.note);
        if self.0.try_send(event).is_err() {
            warn!(limit = QUEUE_LENGTH, "event dropped: the queue is full");
        }
    }
}

async fn publish(recorder: &Recorder, event: &NodeEvent) {
    let message = Event {
        type_: EventType::Warning,
        reason: event.reason.as_str().into(),
        note: Some(event.note.chars().take(MAX_NOTE_LENGTH).collect()),
        action: "AssignPodCIDR".into(),
        secondary: None,
    };
    let node = reference(&event.name, &event.uid);
    match timeout(REQUEST_TIMEOUT, recorder.publish(&message, &node)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            warn!(node = event.name, error = podwire_kubernetes::describe(&error), "event not sent")
        }
        Err(_) => warn!(node = event.name, timeout = ?REQUEST_TIMEOUT, "event not sent: no response"),
    }
}
