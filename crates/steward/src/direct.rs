//! Without an agent: a question is answered from the store itself, as Calico's own plugin does, for one call at a time.

use std::net::IpAddr;
use std::path::Path;

use ipnet::IpNet;
use podwire_agent_ipc::addresses::{self, AddressRequest, Lease, Response};
use podwire_agent_ipc::pods::{self, Cluster, Endpoint};
use podwire_agent_ipc::{pending, Owner};
use podwire_block_ipam::moment::Moment;
use podwire_block_ipam::selector::Labels;
use podwire_block_ipam::store::Store;
use podwire_block_ipam::{Allocator, Error as Blocks, Handle, IpFamily, Owner as Node, Request, Rules};

use crate::clerk::attributes;
use crate::{endpoints, families, stale, Error};

/// Answers a question. What was noted in `state` by earlier calls, when the store did not answer, is carried out on the way.
pub fn answer(
    store: &dyn Store,
    cluster: Option<&dyn Cluster>,
    node: &str,
    state: &Path,
    question: &addresses::Request,
) -> Response {
    match Direct::new(store, cluster, node).and_then(|direct| direct.answer(state, question)) {
        Ok(answer) => answer,
        Err(error) => crate::door::failed(&error),
    }
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
        let (allocator, rules) = (Allocator::new(store, Moment::now), Rules::load(store)?);
        Ok(Direct { store, cluster, allocator, rules, node })
    }

    fn answer(&self, state: &Path, question: &addresses::Request) -> Result<Response, Error> {
        match question {
            addresses::Request::Assign { owner, addresses: wish, .. } => {
                self.carry_out_notes(state);
                return self.assign(owner, wish).map(|addresses| Response::Assigned { addresses });
            }
            addresses::Request::Inspect { owner } => {
                let held = self.allocator.addresses_of(&Handle::id(&owner.network, &owner.container))?;
                return Ok(Response::Assigned { addresses: held.into_iter().map(IpNet::from).collect() });
            }
            addresses::Request::Release { owner, legacy_handle: legacy } => {
                // An agent that comes back must not believe in a lease that is over. The note goes with the others.
                pending::release(state, owner).map_err(Error::file("note in", state))?;
                self.release(owner)?;
                if let Some(legacy) = legacy {
                    self.allocator.release_handle(&self.rules, legacy)?;
                }
                self.carry_out_notes(state);
            }
            addresses::Request::Publish { endpoint } => {
                self.carry_out_notes(state);
                endpoints::publish(self.store, self.node, endpoint)?;
            }
            addresses::Request::Join { endpoint } => {
                self.carry_out_notes(state);
                let joined = endpoints::join(self.store, self.node, endpoint)?;
                if joined.is_some() {
                    endpoints::revise_note(state, endpoint, true).map_err(Error::file("note in", state))?;
                }
                return Ok(Response::Joined { endpoint: joined.map(Box::new) });
            }
            addresses::Request::Withdraw { endpoint } => {
                let told = pods::endpoints_dir(state);
                pending::release(&told, &endpoint.owner).map_err(Error::file("note in", &told))?;
                endpoints::withdraw(self.store, self.node, endpoint)?;
                endpoints::revise_note(state, endpoint, false).map_err(Error::file("note in", state))?;
                self.carry_out_notes(state);
            }
            // They are not asked of the store.
            addresses::Request::Pod { .. } | addresses::Request::PodCidrs { .. } => {
                return Ok(crate::pods::answer(self.cluster, self.node, question))
            }
            addresses::Request::Collect { network, valid } => {
                self.carry_out_notes(state);
                self.collect(network, valid)?;
            }
            addresses::Request::Ping => {
                drop(self.pools_for(IpFamily::V4).or_else(|_| self.pools_for(IpFamily::V6))?)
            }
        }
        Ok(Response::Done)
    }

    fn assign(&self, owner: &Owner, wish: &AddressRequest) -> Result<Vec<IpNet>, Error> {
        let id = Handle::id(&owner.network, &owner.container);
        let namespace_labels = match self.rules.look_at_namespaces() {
            true => crate::pods::namespace_labels(self.cluster, wish)?,
            false => Labels::new(),
        };
        let request = |family, pools: &[String]| -> Result<Request, Error> {
            let node_labels = Rules::node_labels(self.store, self.node)?;
            let attributes = attributes(self.node, &wish.namespace, &wish.pod);
            let plain = Request::new(Node::host(self.node), id.clone());
            let namespace_labels = namespace_labels.clone();
            Ok(Request { family, pools: pools.to_vec(), attributes, node_labels, namespace_labels, ..plain })
        };
        let all = |request: Request| -> Result<Vec<IpNet>, Error> {
            let assigned = self.allocator.assign(&self.rules, &request)?;
            assigned.shortage.map_or(Ok(assigned.addresses), |why| Err(why.into()))
        };
        let this = |ip: &IpAddr| self.assign_address(&request(IpFamily::of(*ip), &[])?, wish, *ip);
        let given: Result<Vec<Vec<IpNet>>, Error> = match &wish.ips[..] {
            [] => {
                families(wish).iter().map(|(family, pools)| request(*family, pools).and_then(all)).collect()
            }
            ips => ips.iter().map(this).collect(),
        };
        if given.is_err() {
            // One family alone is of no use.
            let _ = self.allocator.release_handle(&self.rules, &id);
        }
        Ok(given?.concat())
    }

    /// This very address. A pod that asks for it again, in another sandbox, may have it: the one before is gone, or will be.
    fn assign_address(
        &self,
        request: &Request,
        wish: &AddressRequest,
        ip: IpAddr,
    ) -> Result<Vec<IpNet>, Error> {
        let assign = || self.allocator.assign_address(&self.rules, request, ip).map(|given| vec![given]);
        match assign() {
            Err(Blocks::Taken { holder, .. })
                if holder != request.handle && self.is_the_pods(ip, wish)? =>
            {
                self.allocator.release_handle(&self.rules, &holder)?;
                Ok(assign()?)
            }
            done => Ok(done?),
        }
    }

    /// Whether the pod has an address already.
    fn is_the_pods(&self, ip: IpAddr, wish: &AddressRequest) -> Result<bool, Error> {
        let blocks = self.allocator.blocks()?.into_iter().flatten();
        let is_it = |block: podwire_block_ipam::Block| {
            let held = block.allocation(ip)?.attribute.secondary.clone();
            let said = |key: &str| held.get(key).cloned().unwrap_or_default();
            Some((said("namespace"), said("pod")) == (wish.namespace.clone(), wish.pod.clone()))
        };
        Ok(!wish.pod.is_empty() && blocks.into_iter().filter_map(is_it).any(|is| is))
    }

    fn release(&self, owner: &Owner) -> Result<(), Error> {
        self.allocator.release_handle(&self.rules, &Handle::id(&owner.network, &owner.container))?;
        Ok(())
    }

    /// What could not be released when it was to be. One that still cannot be stays noted, and keeps back nobody who comes: a store that does not answer
    /// says so to them itself.
    fn carry_out_notes(&self, state: &Path) {
        for (path, lease) in pending::read_all::<Lease>(&pending::released_dir(state)) {
            if lease.is_ok_and(|lease| self.release(&lease.owner).is_ok()) {
                let _ = std::fs::remove_file(path);
            }
        }
        for (path, gone) in pending::read_all::<Endpoint>(&pending::released_dir(&pods::endpoints_dir(state)))
        {
            if gone.is_ok_and(|gone| endpoints::withdraw(self.store, self.node, &gone).is_ok()) {
                let _ = std::fs::remove_file(path);
            }
        }
    }

    /// Releases what containers of a network have that are not among the valid ones, in this node's blocks, and withdraws their endpoints.
    fn collect(&self, network: &str, valid: &stale::Attachments) -> Result<(), Error> {
        let stale = stale::handles(&self.allocator, self.node, network, valid)?;
        for (id, gone) in &stale {
            endpoints::withdraw(self.store, self.node, gone)?;
            self.allocator.release_handle(&self.rules, id)?;
        }
        Ok(())
    }

    fn pools_for(&self, family: IpFamily) -> Result<Vec<(IpNet, u64)>, Error> {
        let node_labels = Rules::node_labels(self.store, self.node)?;
        let request = Request { family, node_labels, ..Request::new(Node::host(self.node), "") };
        Ok(self.rules.networks_for(&request)?)
    }
}
