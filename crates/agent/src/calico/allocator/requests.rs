//! Requests for addresses that the warm pool does not have. They wait for the store sync.

use std::net::IpAddr;
use std::sync::mpsc::Sender;
use std::time::Instant;

use podwire_agent_ipc::addresses::AddressRequest;
use podwire_block_ipam::selector::Labels;
use podwire_block_ipam::{AffinityOwner, Handle, IpFamily, Request};

use super::error::Error;

/// The pools from which an address may be assigned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PoolChoice {
    pub(super) family: IpFamily,
    /// Names or CIDRs; empty: all pools that select this node and the namespace.
    pub(super) pools: Vec<String>,
    /// The labels of the pod's namespace.
    pub(super) namespace: Labels,
}

impl PoolChoice {
    /// The pools that every pod of this node may use.
    pub(super) fn default_for(family: IpFamily) -> PoolChoice {
        PoolChoice { family, pools: Vec::new(), namespace: Labels::new() }
    }

    /// The request for the node's warm pool.
    pub(super) fn request(&self, node: &str, labels: &Labels) -> Request {
        Request {
            family: self.family,
            pools: self.pools.clone(),
            node_labels: labels.clone(),
            namespace_labels: self.namespace.clone(),
            ..Request::new(AffinityOwner::host(node), Handle::for_warm_pool(node))
        }
    }
}

/// An address that the warm pool should get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Any address of these pools.
    Any(PoolChoice),
    /// This address.
    Address(IpAddr),
}

impl Wanted {
    /// What an attachment's request needs.
    pub(super) fn of(request: &AddressRequest, namespace: &Labels) -> Vec<Wanted> {
        if !request.ips.is_empty() {
            return request.ips.iter().copied().map(Wanted::Address).collect();
        }
        let choice = |(family, pools)| PoolChoice { family, pools, namespace: namespace.clone() };
        pools_by_family(request).into_iter().map(choice).map(Wanted::Any).collect()
    }
}

/// The families that a request asks for, each with its pools.
pub(super) fn pools_by_family(request: &AddressRequest) -> Vec<(IpFamily, Vec<String>)> {
    let v4 = request.ipv4_pools.clone().map(|pools| (IpFamily::V4, pools));
    let v6 = request.ipv6_pools.clone().map(|pools| (IpFamily::V6, pools));
    v4.into_iter().chain(v6).collect()
}

/// A plugin's call that waits.
pub(super) struct Waiter {
    pub(super) reply: Sender<Result<(), Error>>,
    pub(super) deadline: Instant,
}

impl Waiter {
    pub(super) fn send(&self, outcome: Result<(), Error>) {
        let _ = self.reply.send(outcome);
    }

    fn has_expired(&self) -> bool {
        self.deadline <= Instant::now()
    }
}

/// A request that waits.
pub(super) struct WaitingRequest {
    pub(super) wanted: Wanted,
    pub(super) waiter: Waiter,
}

/// All waiting requests.
#[derive(Default)]
pub(super) struct Requests {
    queue: Vec<WaitingRequest>,
    /// The particular addresses that pods wait for: they are not evicted from the warm pool. An address is listed once
    /// for each request.
    pinned: Vec<IpAddr>,
    /// Whether a request arrived since the store last failed.
    has_new: bool,
}

impl Requests {
    pub(super) fn push(&mut self, request: WaitingRequest) {
        self.queue.push(request);
        self.has_new = true;
    }

    /// Takes all requests whose callers still wait. For the others the store is not asked.
    pub(super) fn take_all(&mut self) -> Vec<WaitingRequest> {
        self.has_new = false;
        self.drop_expired();
        std::mem::take(&mut self.queue)
    }

    /// Puts requests back for the next attempt.
    pub(super) fn put_back(&mut self, requests: impl IntoIterator<Item = WaitingRequest>) {
        self.queue.extend(requests);
    }

    pub(super) fn drop_expired(&mut self) {
        self.queue.retain(|request| !request.waiter.has_expired());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn has_new(&self) -> bool {
        self.has_new
    }

    pub(super) fn clear_new(&mut self) {
        self.has_new = false;
    }

    pub(super) fn pin(&mut self, ips: &[IpAddr]) {
        self.pinned.extend(ips);
    }

    pub(super) fn unpin(&mut self, ips: &[IpAddr]) {
        for ip in ips {
            let at = self.pinned.iter().position(|one| one == ip);
            at.map(|at| self.pinned.swap_remove(at));
        }
    }

    pub(super) fn is_pinned(&self, ip: IpAddr) -> bool {
        self.pinned.contains(&ip)
    }
}
