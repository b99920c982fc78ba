//! Without an agent: answers one request from the store itself, as Calico's own plugin does.

use std::net::IpAddr;
use std::path::Path;

use ipnet::IpNet;
use podwire_agent_ipc::addresses::{AddressRequest, Lease, Request, Response};
use podwire_agent_ipc::pods::{endpoints_dir, Cluster, Endpoint};
use podwire_agent_ipc::{pending, Owner, ValidAttachment};
use podwire_block_ipam::selector::Labels;
use podwire_block_ipam::store::Store;
use podwire_block_ipam::timestamp::Timestamp;
use podwire_block_ipam::{
    AffinityOwner, Allocator, Block, Error as IpamError, Handle, IpFamily, Request as IpamRequest, Rules,
};

use super::endpoints;
use super::error::Error;
use super::handles::{self, attributes};
use super::pods;
use super::problems::shortage_of;
use super::requests::pools_by_family;

/// Answers a request. Changes in `state_dir` that earlier calls could not write to the store are written on the way.
pub fn respond(
    store: &dyn Store,
    cluster: Option<&dyn Cluster>,
    node: &str,
    state_dir: &Path,
    request: &Request,
) -> Response {
    let direct = Direct::new(store, cluster, node);
    let response = direct.and_then(|direct| direct.respond(state_dir, request));
    response.unwrap_or_else(|error| error.response())
}

struct Direct<'a> {
    store: &'a dyn Store,
    cluster: Option<&'a dyn Cluster>,
    allocator: Allocator<'a>,
    rules: Rules,
    node: &'a str,
}

impl<'a> Direct<'a> {
    fn new(
        store: &'a dyn Store,
        cluster: Option<&'a dyn Cluster>,
        node: &'a str,
    ) -> Result<Direct<'a>, Error> {
        let (allocator, rules) = (Allocator::new(store, Timestamp::now), Rules::load(store)?);
        Ok(Direct { store, cluster, allocator, rules, node })
    }

    fn respond(&self, state_dir: &Path, request: &Request) -> Result<Response, Error> {
        let recording = || Error::file("write a pending change to", state_dir);
        match request {
            Request::Assign { owner, addresses, .. } => {
                self.write_pending(state_dir);
                return self.assign(owner, addresses).map(|addresses| Response::Assigned { addresses });
            }
            Request::Inspect { owner } => {
                let held = self.allocator.addresses_of(&Handle::id(&owner.network, &owner.container))?;
                return Ok(Response::Assigned { addresses: held.into_iter().map(IpNet::from).collect() });
            }
            Request::Release { owner, legacy_handle } => {
                // A lease of an agent that is down becomes a pending release, so that the agent does not use it again.
                pending::release(state_dir, owner).map_err(recording())?;
                self.release(owner)?;
                if let Some(handle) = legacy_handle {
                    self.allocator.release_handle(&self.rules, handle)?;
                }
                self.write_pending(state_dir);
            }
            Request::Publish { endpoint } => {
                self.write_pending(state_dir);
                endpoints::publish(self.store, self.node, endpoint)?;
            }
            Request::Join { endpoint } => {
                self.write_pending(state_dir);
                let joined = endpoints::join(self.store, self.node, endpoint)?;
                if joined.is_some() {
                    endpoints::set_recorded_profile(state_dir, endpoint, true).map_err(recording())?;
                }
                return Ok(Response::Joined { endpoint: joined.map(Box::new) });
            }
            Request::Withdraw { endpoint } => {
                pending::release(&endpoints_dir(state_dir), &endpoint.owner).map_err(recording())?;
                endpoints::withdraw(self.store, self.node, endpoint)?;
                endpoints::set_recorded_profile(state_dir, endpoint, false).map_err(recording())?;
                self.write_pending(state_dir);
            }
            Request::Pod { .. } | Request::PodCidrs { .. } => {
                return Ok(pods::respond(self.cluster, self.node, request))
            }
            Request::Collect { network, valid } => {
                self.write_pending(state_dir);
                self.collect(network, valid)?;
            }
            Request::Ping => self.check_ready()?,
        }
        Ok(Response::Done)
    }

    fn assign(&self, owner: &Owner, wanted: &AddressRequest) -> Result<Vec<IpNet>, Error> {
        let id = Handle::id(&owner.network, &owner.container);
        let namespace_labels = if self.rules.use_namespace_labels() {
            pods::namespace_labels(self.cluster, wanted)?
        } else {
            Labels::new()
        };
        let request = |family, pools: &[String]| -> Result<IpamRequest, Error> {
            Ok(IpamRequest {
                family,
                pools: pools.to_vec(),
                attributes: attributes(self.node, &wanted.namespace, &wanted.pod),
                node_labels: Rules::node_labels(self.store, self.node)?,
                namespace_labels: namespace_labels.clone(),
                ..IpamRequest::new(AffinityOwner::host(self.node), id.clone())
            })
        };
        let assign = |request: IpamRequest| -> Result<Vec<IpNet>, Error> {
            let assigned = self.allocator.assign(&self.rules, &request)?;
            assigned.shortage.map_or(Ok(assigned.addresses), |why| Err(why.into()))
        };
        let assign_ip = |ip: &IpAddr| self.assign_address(&request(IpFamily::of(*ip), &[])?, wanted, *ip);
        let assigned: Result<Vec<Vec<IpNet>>, Error> = if wanted.ips.is_empty() {
            let families = pools_by_family(wanted);
            families.iter().map(|(family, pools)| request(*family, pools).and_then(assign)).collect()
        } else {
            wanted.ips.iter().map(assign_ip).collect()
        };
        if assigned.is_err() {
            // One family without the other is of no use.
            let _ = self.allocator.release_handle(&self.rules, &id);
        }
        Ok(assigned?.concat())
    }

    /// Assigns a particular address. A pod that requests it again in a new sandbox gets it: a pod has one running
    /// sandbox, so no process uses the address through the previous one.
    fn assign_address(
        &self,
        request: &IpamRequest,
        wanted: &AddressRequest,
        ip: IpAddr,
    ) -> Result<Vec<IpNet>, Error> {
        let assign = || self.allocator.assign_address(&self.rules, request, ip).map(|address| vec![address]);
        match assign() {
            Err(IpamError::Taken { holder, .. })
                if holder != request.handle && self.is_assigned_to_pod(ip, wanted)? =>
            {
                self.allocator.release_handle(&self.rules, &holder)?;
                Ok(assign()?)
            }
            outcome => Ok(outcome?),
        }
    }

    /// Whether the pod of the request has this address.
    fn is_assigned_to_pod(&self, ip: IpAddr, wanted: &AddressRequest) -> Result<bool, Error> {
        let has_it = |block: &Block| {
            block.allocation(ip).is_some_and(|allocation| {
                let attributes = &allocation.attribute.secondary;
                let get = |key: &str| attributes.get(key).map_or("", String::as_str);
                (get("namespace"), get("pod")) == (wanted.namespace.as_str(), wanted.pod.as_str())
            })
        };
        Ok(!wanted.pod.is_empty() && self.allocator.blocks()?.iter().flatten().any(has_it))
    }

    fn release(&self, owner: &Owner) -> Result<(), Error> {
        self.allocator.release_handle(&self.rules, &Handle::id(&owner.network, &owner.container))?;
        Ok(())
    }

    /// Writes pending releases and withdrawals to the store. One that fails stays pending and does not fail the
    /// request: if the store is down, the request fails by itself.
    fn write_pending(&self, state_dir: &Path) {
        for (path, lease) in pending::read_all::<Lease>(&pending::released_dir(state_dir)) {
            if lease.is_ok_and(|lease| self.release(&lease.owner).is_ok()) {
                let _ = std::fs::remove_file(path);
            }
        }
        let withdrawn = pending::released_dir(&endpoints_dir(state_dir));
        for (path, gone) in pending::read_all::<Endpoint>(&withdrawn) {
            if gone.is_ok_and(|gone| endpoints::withdraw(self.store, self.node, &gone).is_ok()) {
                let _ = std::fs::remove_file(path);
            }
        }
    }

    /// Releases the addresses of a network's containers in this node's blocks except the valid ones, and withdraws
    /// their endpoints.
    fn collect(&self, network: &str, valid: &[ValidAttachment]) -> Result<(), Error> {
        for (id, gone) in &handles::stale(&self.allocator, self.node, network, valid)? {
            endpoints::withdraw(self.store, self.node, gone)?;
            self.allocator.release_handle(&self.rules, id)?;
        }
        Ok(())
    }

    /// Fails if no pod can get an address.
    fn check_ready(&self) -> Result<(), Error> {
        let node_labels = Rules::node_labels(self.store, self.node)?;
        let shortage = |family| {
            let owner = AffinityOwner::host(self.node);
            let node_labels = node_labels.clone();
            let request = IpamRequest { family, node_labels, ..IpamRequest::new(owner, "") };
            self.allocator.find_shortage(&self.rules, &request)
        };
        let families = IpFamily::ALL.map(shortage).into_iter().collect::<Result<_, _>>()?;
        shortage_of(families).map_or(Ok(()), |shortage| Err(shortage.into()))
    }
}
