//! The block allocator: owns the node's address blocks, and answers the plugins `calico` and `calico-ipam`.
//!
//! Calico's plugin makes a dozen requests to the store for each pod. Here the agent makes them before the pod starts:
//!
//! ```text
//!            warm: no request to the store                        later, many at once
//!  pod ── request ──▶ [ warm pool ] ──▶ lease (a file) ──▶ store sync ──▶ store: block, handle
//!                          ▲                                   │
//!                          └──────────── refills ──────────────┘
//! ```
//!
//! - The warm pool has addresses of the node's blocks that the store assigns to the node's own handle. No other node
//!   can take them, so a pod gets one at once and the store is updated later.
//! - A lease is a file that is written before the plugin gets its response. A restarted agent reads all leases again.
//! - An endpoint is a file too: an attached pod, which the store publishes as Calico's workload endpoint.
//! - The store sync thread is the only part that talks to the store. It repeats what the store has not confirmed.
//!
//! DEL deletes the lease at once; the store is updated later. A plugin that cannot reach the agent records the release
//! in a file.

pub mod direct;
mod endpoints;
mod error;
mod handles;
mod lease_dir;
mod ownership;
mod pending;
pub mod pods;
mod pool_watcher;
mod problems;
mod requests;
mod server;
mod state;
mod store_sync;
mod warm_pool;

use std::path::Path;
use std::sync::mpsc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use podwire_agent_ipc::addresses::{AddressRequest, Lease, Request, Response};
use podwire_agent_ipc::pods::{Cluster, Endpoint};
use podwire_agent_ipc::status::AddressStatus;
use podwire_agent_ipc::{Owner, ValidAttachment};
use podwire_block_ipam::selector::Labels;
use podwire_block_ipam::store::{Store, StoreError};
use podwire_block_ipam::Ownership;

use endpoints::Endpoints;
pub use error::Error;
use lease_dir::LeaseDir;
pub use pool_watcher::PoolWatcher;
use requests::{Waiter, Wanted};
pub use server::serve;
use state::{State, TakeResult};

/// The upper limit of a plugin's timeout.
const MAX_TIMEOUT: Duration = Duration::from_secs(3600);

/// Opens the store: at the first use, and again after a failure.
pub type Opener = Box<dyn Fn() -> Result<Box<dyn Store>, StoreError> + Send>;

/// The settings of the allocator.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The node's name in the store.
    pub node: String,
    /// The number of addresses of each family in the warm pool, at most a quarter of a block.
    pub warm_addresses: usize,
    /// How long another process must be silent before this one takes over the node: [`Ownership::DURATION`].
    pub claim: Duration,
}

/// A handle of the allocator.
#[derive(Clone)]
pub struct BlockAllocator {
    state: Arc<State>,
    cluster: Option<Arc<dyn Cluster>>,
}

impl BlockAllocator {
    /// Starts the allocator with the leases in `state_dir`. The store may be down.
    pub fn start(settings: Settings, state_dir: &Path, opener: Opener) -> Result<BlockAllocator, Error> {
        let lease_dir = LeaseDir::open(state_dir)?;
        let ownership = Ownership::new(&settings.node, ownership::identity(&lease_dir)?, settings.claim);
        let endpoints = Endpoints::open(state_dir, lease_dir.boot_id())?;
        let state = Arc::new(State::new(settings.node.clone(), lease_dir, endpoints)?);
        store_sync::start(state.clone(), settings, ownership, opener)?;
        Ok(BlockAllocator { state, cluster: None })
    }

    /// Adds the source of pods and namespaces.
    #[must_use]
    pub fn with_cluster(self, cluster: Arc<dyn Cluster>) -> BlockAllocator {
        BlockAllocator { cluster: Some(cluster), ..self }
    }

    /// Answers a request about pods and nodes.
    pub(crate) fn respond_about_cluster(&self, request: &Request) -> Response {
        pods::respond(self.cluster.as_deref(), &self.state.node, request)
    }

    /// Records the endpoint of an attached pod. The store gets it later.
    pub fn publish(&self, endpoint: &Endpoint) -> Result<(), Error> {
        self.state.endpoints.publish(endpoint)?;
        self.state.wake_sync();
        Ok(())
    }

    /// Adds a secondary network to the endpoint that the container has through another network. Returns that endpoint.
    pub fn join(&self, secondary: &Endpoint) -> Result<Option<Endpoint>, Error> {
        let joined = self.state.endpoints.join(secondary)?;
        self.state.wake_sync();
        Ok(joined)
    }

    /// Records that a pod is detached. The store is updated later, unless it has the endpoint of a newer sandbox.
    pub fn withdraw(&self, gone: &Endpoint) -> Result<(), Error> {
        self.state.endpoints.withdraw(gone)?;
        self.state.wake_sync();
        Ok(())
    }

    /// Assigns addresses to an attachment: from the warm pool at once, or as soon as the store has assigned more.
    pub fn assign(
        &self,
        owner: &Owner,
        request: &AddressRequest,
        timeout: Duration,
    ) -> Result<Vec<IpNet>, Error> {
        let deadline = Instant::now() + timeout.min(MAX_TIMEOUT);
        let namespace = self.namespace_labels(request)?;
        if !request.ips.is_empty() {
            self.state.release_previous_sandbox(owner, request)?;
        }
        let _pinned = self.state.pin(&request.ips);
        let mut failed = None;
        loop {
            match (self.state.take(owner, request, &namespace)?, failed) {
                (TakeResult::Lease(lease), _) => return Ok(lease.addresses),
                (TakeResult::Missing(_), Some(error)) => return Err(error),
                // After a failure the warm pool is tried once more: it may have got the last addresses meanwhile.
                (TakeResult::Missing(wanted), None) => {
                    failed = self.wait_for_store(owner, wanted, deadline).err();
                }
            }
        }
    }

    /// The labels of the pod's namespace, if a pool selects namespaces.
    fn namespace_labels(&self, request: &AddressRequest) -> Result<Labels, Error> {
        if self.state.uses_namespace_labels() {
            pods::namespace_labels(self.cluster.as_deref(), request)
        } else {
            Ok(Labels::new())
        }
    }

    fn wait_for_store(&self, owner: &Owner, wanted: Wanted, deadline: Instant) -> Result<(), Error> {
        let (reply, replied) = mpsc::channel();
        self.state.submit(wanted, Waiter { reply, deadline });
        match replied.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(outcome) => outcome,
            Err(_) => {
                let problem = self.state.lock().problems.store.clone();
                let why = problem.map(|error| error.to_string());
                let why = why.unwrap_or_else(|| "the store did not assign one within the timeout".into());
                Err(Error::Timeout { owner: owner.clone(), why })
            }
        }
    }

    /// Releases the addresses of an attachment. The store is updated later.
    pub fn release(&self, owner: &Owner, legacy_handle: Option<&str>) -> Result<(), Error> {
        self.state.release(owner, legacy_handle)
    }

    /// The lease of an attachment.
    pub fn lease(&self, owner: &Owner) -> Option<Lease> {
        self.state.lock().leases.get(owner).cloned()
    }

    /// Releases the addresses of a network's attachments except the valid ones. Addresses without a lease are searched
    /// in the blocks later.
    pub fn collect(&self, network: &str, valid: &[ValidAttachment]) -> Result<(), Error> {
        let is_valid = |owner: &Owner| {
            valid.iter().any(|one| one.container_id == owner.container && one.ifname == owner.ifname)
        };
        let endpoints = &self.state.endpoints;
        let all = endpoints.of_network(network).into_iter().chain(endpoints.secondaries_of(network));
        let gone: Vec<Endpoint> = all.filter(|one| !is_valid(&one.owner)).collect();
        gone.iter().try_for_each(|endpoint| self.withdraw(endpoint))?;
        let owners: Vec<Owner> = self.state.lock().leases.keys().cloned().collect();
        let mut stale = owners.iter().filter(|one| one.network == network && !is_valid(one));
        stale.try_for_each(|owner| self.release(owner, None))?;
        self.state.request_leak_check(network, valid);
        Ok(())
    }

    /// Waits until this process owns the node's blocks.
    pub(crate) fn wait_for_ownership(&self) {
        self.state.wait_for_ownership();
    }

    /// Whether a pod can get an address: the warm pool has one, or the store can assign one.
    pub fn check_ready(&self) -> Result<(), Error> {
        self.state.check_ready()
    }

    /// Tells the allocator that pools have changed, so that it reads them at once.
    pub fn pools_changed(&self) {
        self.state.pools_changed();
    }

    /// The allocator's part of the agent's status.
    pub fn status(&self) -> AddressStatus {
        self.state.status()
    }
}
