//! calico-ipam: addresses from pools whose blocks the nodes of a cluster share, compatible with Calico's plugin of that
//! name.
//!
//! The node's agent owns the node's blocks and assigns from them. If no agent runs, the plugin runs the program
//! `podwire`, which accesses the datastore of the config, as Calico's plugin does. A DEL that reaches neither writes a
//! pending release to disk.

pub(crate) mod config;
pub(crate) mod request;

use std::path::Path;
use std::time::Duration;

use podwire_agent_ipc::addresses::{self, Response};
use podwire_agent_ipc::client::Connection;
use podwire_cni_plugin::{Finding, Keys, Plugin, Request, Result};
use podwire_cni_spec::{code, Attachment, Ip, Route};
use request::{owner, unexpected, Pending};

use crate::addresses::addresses_of;

/// The plugin.
#[derive(Debug)]
pub struct CalicoIpam;

/// How long the agent may wait for the datastore at ADD if its warm pool is empty.
const ASSIGN_TIMEOUT: Duration = Duration::from_secs(15);

impl Plugin for CalicoIpam {
    fn name(&self) -> &'static str {
        "calico-ipam"
    }

    fn about(&self) -> &'static str {
        "calico-ipam: assigns addresses from the IP pools of a cluster"
    }

    fn keys(&self) -> Option<Keys> {
        Some(Keys::new(&[config::CONFIG_KEYS, crate::keys::CALICO_DATASTORE]))
    }

    fn is_recorded(&self) -> bool {
        false
    }

    fn add(&self, req: &Request<'_>) -> Result<Attachment> {
        Ok(begin(req)?.wait(req)?.lease)
    }

    /// Succeeds even if the datastore is down: the release is then written to disk and carried out later.
    fn del(&self, req: &Request<'_>) -> Result<()> {
        let owner = owner(req);
        let release =
            addresses::Request::Release { owner: owner.clone(), legacy_handle: config::legacy_handle(req) };
        match request::call(req, release) {
            Ok(_) => Ok(()),
            Err(_) => addresses::release(Path::new(addresses::STATE_DIR), &owner).map_err(|error| {
                let text =
                    format!("write the pending release of addresses into {}: {error}", addresses::STATE_DIR);
                podwire_cni_spec::Error::new(code::IO, text).into()
            }),
        }
    }

    fn inspect<'p>(&self, req: &Request<'p>) -> Result<Vec<Finding<'p>>> {
        config::requested_addresses(req)?;
        let recorded = req.recorded()?;
        match request::call(req, addresses::Request::Inspect { owner: owner(req) })? {
            Response::Assigned { addresses } => {
                let is_lost = |ip: &&Ip| !addresses.iter().any(|held| held.addr() == ip.address.addr());
                let finding = |ip: &Ip| {
                    let (ip, container) = (ip.address.addr(), &req.container);
                    Finding::new(format!("{ip} is not assigned to container {container} in the datastore"))
                };
                let own = addresses_of(recorded, &req.ifname);
                let own = recorded.ips.iter().filter(|ip| own.contains(&ip.address));
                Ok(own.filter(is_lost).map(finding).collect())
            }
            other => Err(unexpected(&other)),
        }
    }

    fn gc(&self, req: &Request<'_>) -> Result<()> {
        collect(req)
    }

    fn status(&self, req: &Request<'_>) -> Result<()> {
        config::requested_addresses(req)?;
        request::call(req, addresses::Request::Ping).map(drop).map_err(|error| {
            let error = error.to_cni();
            podwire_cni_spec::Error::new(code::NOT_AVAILABLE, error.msg).with_details(error.details).into()
        })
    }
}

/// An assignment that was requested and is not answered yet.
pub(crate) struct PendingAssignment {
    pending: Pending,
    is_explicit: bool,
}

/// The assigned addresses, and the connection to the agent if it is still open.
pub(crate) struct Assigned {
    pub(crate) lease: Attachment,
    pub(crate) connection: Option<Connection>,
}

/// Requests a pod's addresses without waiting for the response.
pub(crate) fn begin(req: &Request<'_>) -> Result<PendingAssignment> {
    let addresses = config::requested_addresses(req)?;
    let is_explicit = !addresses.ips.is_empty();
    let timeout_ms = u64::try_from(ASSIGN_TIMEOUT.as_millis()).unwrap_or(u64::MAX);
    let pending =
        request::begin(req, addresses::Request::Assign { owner: owner(req), addresses, timeout_ms })?;
    Ok(PendingAssignment { pending, is_explicit })
}

impl PendingAssignment {
    /// Waits for the addresses.
    pub(crate) fn wait(self, req: &Request<'_>) -> Result<Assigned> {
        match self.pending.wait_and_keep(req)? {
            (Response::Assigned { addresses }, connection) => {
                Ok(Assigned { lease: result(&addresses, self.is_explicit), connection })
            }
            (other, _) => Err(unexpected(&other)),
        }
    }
}

/// Releases the addresses and endpoints of attachments that are no longer valid.
pub(crate) fn collect(req: &Request<'_>) -> Result<()> {
    let valid = req.valid()?;
    let valid = valid.iter().cloned().collect();
    request::call(req, addresses::Request::Collect { network: req.network.to_string(), valid }).map(drop)
}

/// The result in the form of Calico's plugin: addresses with the prefix lengths of their blocks, and a route for each.
/// Without the route, Calico's `calico` plugin adds no route to the pod on the node. An explicitly requested address
/// has full length.
fn result(addresses: &[ipnet::IpNet], is_explicit: bool) -> Attachment {
    let shown = |net: &ipnet::IpNet| if is_explicit { ipnet::IpNet::from(net.addr()) } else { *net };
    let ip = |net: &ipnet::IpNet| Ip { address: shown(net), interface: None, gateway: None };
    let route = |net: &ipnet::IpNet| Route::new(shown(net), None);
    Attachment {
        ips: addresses.iter().map(ip).collect(),
        routes: addresses.iter().map(route).collect(),
        ..Attachment::default()
    }
}
