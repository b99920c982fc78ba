//! The handle of the policy thread.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use ipnet::IpNet;
use podwire_agent_ipc::policy::{Interface, Response};
use podwire_agent_ipc::Owner;
use podwire_fs::FileError;
use podwire_reconcile::Handle;

use crate::dataplane::{DropCounters, DropCounts};
use crate::message::{Message, Waiting};
use crate::reconciler::{PolicyAgentOptions, PolicyReconciler};
use crate::service_names::ServiceNames;
use crate::status::{PolicyStatus, StatusHandle};
use crate::update::Update;
use crate::Result;

/// The interval between reconciles without an event.
const RESYNC: Duration = Duration::from_secs(30);

/// The handle of the policy thread. The thread ends when the last handle is dropped.
#[derive(Clone, Debug)]
pub struct PolicyAgent {
    thread: Handle<Message>,
    status: StatusHandle,
    counters: Arc<Mutex<DropCounters>>,
    lists_pods: bool,
}

impl PolicyAgent {
    /// Starts the thread in the network namespace of the caller.
    pub fn start(options: PolicyAgentOptions) -> Result<PolicyAgent> {
        let (status, lists_pods) = (StatusHandle::default(), options.lists_pods);
        let reconciler = PolicyReconciler::new(options, status.clone())?;
        let thread = podwire_reconcile::spawn("policy", RESYNC, reconciler);
        let thread = thread.map_err(FileError::at("start", "the policy thread"))?;
        let counters = Arc::new(Mutex::new(DropCounters::open()?));
        Ok(PolicyAgent { thread, status, counters, lists_pods })
    }

    /// Delivers an event of the source.
    pub fn update(&self, update: Update) -> Result<()> {
        self.send(Message::Update(update))
    }

    /// States that the updates so far include all changes of the source up to `time`.
    pub(crate) fn updated_as_of(&self, time: SystemTime) -> Result<()> {
        self.send(Message::AsOf(time))
    }

    /// Sets the networks that contain only addresses of this node's pods, and the node's own addresses.
    pub fn set_networks(&self, pods: Vec<IpNet>, node: Vec<IpAddr>) -> Result<()> {
        self.send(Message::Networks { pods, node })
    }

    /// Sets the UDP ports of the node to which no pod can send, because another table drops what other nodes did not send,
    /// and excludes the rest from conntrack. Policies do not look at these packets.
    pub fn set_guarded_ports(&self, ports: BTreeSet<u16>) -> Result<()> {
        self.send(Message::GuardedPorts(ports))
    }

    /// Sets how the log of dropped packets finds the Services of an endpoint.
    pub fn set_service_names(&self, names: ServiceNames) -> Result<()> {
        self.send(Message::ServiceNames(names))
    }

    /// Adds an attached interface. The response arrives when its policies are enforced, unless that takes longer than
    /// `timeout`.
    pub(crate) fn attach(&self, interface: Interface, timeout: Duration) -> Result<Receiver<Response>> {
        let (sender, response) = mpsc::channel();
        self.send(Message::Attach(Waiting { interface, until: Instant::now() + timeout, sender }))?;
        Ok(response)
    }

    /// Removes a detached interface.
    pub(crate) fn detach(&self, owner: Owner) -> Result<()> {
        self.send(Message::Detach(owner))
    }

    /// The objects that decide, after the first `after`.
    pub(crate) fn objects(&self, after: usize) -> Result<Receiver<Response>> {
        let (sender, response) = mpsc::channel();
        self.send(Message::Objects(after, sender))?;
        Ok(response)
    }

    /// Whether an attach request waits until the source lists the pod.
    pub(crate) fn lists_pods(&self) -> bool {
        self.lists_pods
    }

    /// The status after the last reconcile.
    pub fn status(&self) -> PolicyStatus {
        self.status.read()
    }

    /// Reads the kernel's counters of dropped packets.
    pub fn drop_counts(&self) -> Result<DropCounts> {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner).read()
    }

    fn send(&self, message: Message) -> Result<()> {
        Ok(self.thread.send(message)?)
    }
}
