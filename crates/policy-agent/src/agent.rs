//! The thread that enforces, as others see it: what it can be told, and how it stands.

use std::fs::File;
use std::io::Write;
use std::net::IpAddr;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use crate::dataplane::{Counters, DropCounts, TableSize};
use ipnet::IpNet;
use podwire_agent_ipc::policy::{Interface, Response};
use podwire_agent_ipc::Owner;
use podwire_netlink::sys;

use crate::cluster_state::Home;
use crate::reconciler::PolicyReconciler;
use crate::{Error, Result, Update};

/// How it stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyStatus {
    /// Whether what the source told is enforced.
    pub enforced: bool,
    /// How many policies there are.
    pub policies: usize,
    /// How many interfaces of pods plugins told of.
    pub interfaces: usize,
    /// How much of that is in the kernel.
    pub size: TableSize,
    /// How often the kernel's rules were changed.
    pub changes: u64,
    /// How often that was because somebody else had touched them.
    pub repairs: u64,
    /// How often something failed.
    pub failures: u64,
    /// How many connections were cut because policies no longer allow them.
    pub closed_connections: u64,
    /// What the last change took, from the news to the kernel.
    pub last_change: Duration,
    /// Selectors to which nobody fits, each with its place and in words.
    pub unmatched_selectors: Vec<String>,
    /// When the newest change was made that is enforced, by a source that knows that.
    pub as_of: Option<SystemTime>,
    /// What is wrong, if anything is.
    pub problem: Option<String>,
}

pub(crate) enum Order {
    Update(Update),
    /// All that was changed until then was told.
    AsOf(SystemTime),
    /// This node's ranges: whoever has an address of them is a pod. And its own addresses.
    Guard(Vec<IpNet>, Vec<IpAddr>),
    Attach(Interface, Sender<Response>),
    Detach(Owner),
}

/// Where the thread gets its orders, and shows how it stands.
pub(crate) struct Desk {
    pub inbox: Receiver<Order>,
    /// Rings after each order.
    pub bell: File,
    pub state: Arc<Mutex<PolicyStatus>>,
}

/// How a [`PolicyAgent`] works.
#[derive(Clone, Debug, Default)]
pub struct PolicyAgentOptions {
    /// The node's name in the cluster.
    pub node_name: String,
    /// Whether the source lists every pod of this node. If it does, an attach request waits until the source knows the pod.
    pub lists_pods: bool,
    /// Whether the agent closes connections that a new policy denies.
    pub close_denied: bool,
}

/// The thread, as others see it. It ends with the last of its handles.
#[derive(Clone, Debug)]
pub struct PolicyAgent {
    orders: Sender<Order>,
    bell: Arc<File>,
    state: Arc<Mutex<PolicyStatus>>,
    counters: Arc<Mutex<Counters>>,
}

impl PolicyAgent {
    /// Starts the thread in the network namespace of the caller.
    pub fn start(options: PolicyAgentOptions) -> Result<PolicyAgent> {
        let PolicyAgentOptions { node_name, lists_pods, close_denied } = options;
        let (orders, inbox) = mpsc::channel();
        let (hear, bell) = sys::pipe().map_err(Error::file("make", "a pipe"))?;
        let state = Arc::new(Mutex::new(PolicyStatus::default()));
        let desk = Desk { inbox, bell: hear.into(), state: state.clone() };
        let home = Home { name: node_name, addresses: Vec::new() };
        let mut enforcer = PolicyReconciler::new(desk, home, lists_pods, close_denied)?;
        std::thread::Builder::new()
            .name("agent".into())
            .spawn(move || enforcer.run())
            .map_err(Error::file("start", "the thread that enforces policies"))?;
        let counters = Arc::new(Mutex::new(Counters::open()?));
        Ok(PolicyAgent { orders, bell: Arc::new(bell.into()), state, counters })
    }

    /// News of the source.
    pub fn update(&self, update: Update) -> Result<()> {
        self.order(Order::Update(update))
    }

    /// All that was changed in the source until then was told.
    pub(crate) fn updated_as_of(&self, time: SystemTime) -> Result<()> {
        self.order(Order::AsOf(time))
    }

    /// Whoever has an address of these networks is a pod of this node; these addresses are the node's own.
    pub fn set_networks(&self, networks: Vec<IpNet>, own: Vec<IpAddr>) -> Result<()> {
        self.order(Order::Guard(networks, own))
    }

    /// An interface was attached; the answer comes when its policies are enforced.
    pub(crate) fn attach(&self, interface: Interface) -> Result<Receiver<Response>> {
        let (reply, answer) = mpsc::channel();
        self.order(Order::Attach(interface, reply))?;
        Ok(answer)
    }

    /// An interface is gone.
    pub(crate) fn detach(&self, owner: Owner) -> Result<()> {
        self.order(Order::Detach(owner))
    }

    /// How it stands.
    pub fn status(&self) -> PolicyStatus {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many packets were dropped, by the kernel's counts.
    pub fn drop_counts(&self) -> Result<DropCounts> {
        Ok(self.counters.lock().unwrap_or_else(PoisonError::into_inner).read()?)
    }

    fn order(&self, order: Order) -> Result<()> {
        self.orders.send(order).map_err(|_| Error::Ended)?;
        (&*self.bell).write_all(b"!").map_err(|_| Error::Ended)
    }
}
