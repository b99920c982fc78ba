//! The owner of a node's blocks.
//!
//! Calico's plugin asks the store a dozen questions for each pod. Here the node's agent has asked them before the pod comes:
//!
//! ```text
//!            warm: no word to the store                      afterwards, many at once
//!  pod ── ask at the door ──▶ [ stock ] ──▶ lease on the disk ──▶ the clerk ──▶ store: block, handle
//!                                 ▲                                   │
//!                                 └─────── stocks up when low ────────┘
//! ```
//!
//! - The [`stock`] are addresses of the node's blocks that belong, in the store, to the node's own handle. To everybody else they are
//!   taken, so that a pod can have one at once and the store be told later.
//! - A **lease** is a file: what a pod has got is written down before it is told. An agent that is killed finds all of it again.
//! - An [endpoint](endpoints) is a file, too: a pod that is connected, which others in the cluster are to hear of.
//! - The [`clerk`] is the only one who speaks to the store. What it could not tell it tells again, when the store answers.
//!
//! A pod that goes is forgotten at once and released when the store answers; a plugin that finds nobody at the door leaves a note.

#![forbid(unsafe_code)]

mod clerk;
mod desk;
pub mod direct;
mod door;
mod endpoints;
mod error;
pub mod pods;
mod shelf;
mod stale;
mod stock;

use std::path::Path;
use std::sync::mpsc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use podwire_agent_ipc::addresses::{AddressRequest, Lease, Request, Response};
use podwire_agent_ipc::pods::{Cluster, Endpoint};
use podwire_agent_ipc::{Owner, ValidAttachment};
use podwire_block_ipam::selector::Labels;
use podwire_block_ipam::store::{Store, StoreError};
use podwire_block_ipam::IpFamily;

pub use clerk::Settings;
use desk::{Desk, Order};
pub use door::open as open_door;
use endpoints::Endpoints;
pub use error::Error;
use shelf::Shelf;

/// Nobody waits longer for an address.
const LONGEST: Duration = Duration::from_secs(3600);

/// A store that is opened when it is needed, and again when that failed.
pub type Opener = Box<dyn Fn() -> Result<Box<dyn Store>, StoreError> + Send>;

/// Gives addresses of the node's blocks, and takes them back.
#[derive(Clone)]
pub struct Steward {
    desk: Arc<Desk>,
    cluster: Option<Arc<dyn Cluster>>,
}

/// How it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Addresses that pods have.
    pub leases: usize,
    /// Addresses that pods may get at once.
    pub stock: usize,
    /// What the store has not been told yet.
    pub untold: usize,
    /// Why the store cannot be told, if it cannot.
    pub trouble: Option<String>,
    /// Blocks and handles that make no sense, and why: nothing is taken from them and nothing written to them.
    pub unreadable: Vec<String>,
    /// Addresses that pods have and the store has given to somebody else.
    pub lost: Vec<String>,
}

impl Steward {
    /// Begins, with the leases that are in `state`. The store need not answer for that.
    pub fn start(settings: Settings, state: &Path, opener: Opener) -> Result<Steward, Error> {
        let shelf = Shelf::open(state)?;
        let endpoints = Endpoints::open(state, shelf.boot())?;
        let desk = Arc::new(Desk::new(settings.node.clone(), shelf, endpoints)?);
        clerk::hire(desk.clone(), settings, opener)?;
        Ok(Steward { desk, cluster: None })
    }

    /// The same, with somebody who knows the cluster's pods.
    #[must_use]
    pub fn knowing(self, cluster: Arc<dyn Cluster>) -> Steward {
        Steward { cluster: Some(cluster), ..self }
    }

    /// What the cluster knows of pods and nodes.
    pub fn about_cluster(&self, question: &Request) -> Response {
        pods::answer(self.cluster.as_deref(), &self.desk.node, question)
    }

    /// A pod is connected. It is noted; the store is told afterwards.
    pub fn publish(&self, endpoint: &Endpoint) -> Result<(), Error> {
        self.desk.publish(endpoint)
    }

    /// One more network of a container on an interface that it has: the endpoint that it has joined, if there is one.
    pub fn join(&self, guest: &Endpoint) -> Result<Option<Endpoint>, Error> {
        self.desk.join(guest)
    }

    /// A pod is connected no longer. The store is told afterwards, unless it knows of a sandbox that came later.
    pub fn withdraw(&self, gone: &Endpoint) -> Result<(), Error> {
        self.desk.withdraw(gone)
    }

    /// The addresses of an attachment: at once if they are in stock, else as soon as the store has given them.
    pub fn assign(
        &self,
        owner: &Owner,
        wish: &AddressRequest,
        patience: Duration,
    ) -> Result<Vec<IpNet>, Error> {
        let until = Instant::now() + patience.min(LONGEST);
        let namespace = self.namespace_of(wish)?;
        if !wish.ips.is_empty() {
            self.desk.free_for_successor(owner, wish)?;
        }
        let _expected = self.desk.expect(&wish.ips);
        loop {
            match self.desk.take(owner, wish, &namespace)? {
                desk::Taken::Lease(lease) => return Ok(lease.addresses),
                desk::Taken::Missing(order) => self.wait(owner, order, until)?,
            }
        }
    }

    /// The labels of the pod's namespace, if they matter for where its addresses come from.
    fn namespace_of(&self, wish: &AddressRequest) -> Result<Labels, Error> {
        match self.desk.looks_at_namespaces() {
            true => pods::namespace_labels(self.cluster.as_deref(), wish),
            false => Ok(Labels::new()),
        }
    }

    fn wait(&self, owner: &Owner, order: Order, until: Instant) -> Result<(), Error> {
        let (reply, answer) = mpsc::channel();
        self.desk.order(order, desk::Reply { to: reply, until });
        match answer.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(done) => done,
            Err(_) => Err(Error::TooSlow {
                owner: owner.clone(),
                why: self.desk.trouble().unwrap_or_else(|| "it takes longer than this call may".into()),
            }),
        }
    }

    /// Takes back what an attachment has. The store is told afterwards.
    pub fn release(&self, owner: &Owner, legacy: Option<&str>) -> Result<(), Error> {
        self.desk.give_back(owner, legacy)
    }

    /// What an attachment has, if it has it from here.
    pub fn lease(&self, owner: &Owner) -> Option<Lease> {
        self.desk.lease(owner)
    }

    /// Takes back what attachments of a network have, but for the valid ones: container and interface. What has no lease here the clerk
    /// looks for in the blocks, afterwards.
    pub fn collect(&self, network: &str, valid: &[ValidAttachment]) -> Result<(), Error> {
        let is_valid = |owner: &Owner| {
            valid.iter().any(|one| one.container_id == owner.container && one.ifname == owner.ifname)
        };
        let endpoints = &self.desk.endpoints;
        let all = endpoints.of_network(network).into_iter().chain(endpoints.guests_of(network));
        let gone: Vec<Endpoint> = all.filter(|one| !is_valid(&one.owner)).collect();
        gone.iter().try_for_each(|endpoint| self.withdraw(endpoint))?;
        let mut stale = self.desk.owners().into_iter().filter(|one| one.network == network && !is_valid(one));
        stale.try_for_each(|owner| self.release(&owner, None))?;
        self.desk.look_for_stale(network, valid);
        Ok(())
    }

    /// Whether a pod could get an address.
    pub fn is_ready(&self) -> Result<(), Error> {
        match self.state() {
            State { stock: 1.., .. } | State { trouble: None, .. } => Ok(()),
            State { trouble: Some(why), .. } => Err(Error::NoStock { why }),
        }
    }

    /// How it is.
    pub fn state(&self) -> State {
        self.desk.state()
    }
}

/// The families that a wish is about.
fn families(wish: &AddressRequest) -> Vec<(IpFamily, Vec<String>)> {
    let v4 = wish.ipv4_pools.clone().map(|pools| (IpFamily::V4, pools));
    let v6 = wish.ipv6_pools.clone().map(|pools| (IpFamily::V6, pools));
    v4.into_iter().chain(v6).collect()
}
