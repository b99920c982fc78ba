//! calico-ipam: addresses of pools that the nodes of a cluster share in blocks, as Calico's plugin of that name gives them.
//!
//! The node's agent owns the node's blocks and answers at once. Where no agent runs, the tool `podwire` is called, which goes to
//! the datastore of the config by itself, as Calico's plugin does. A DEL that reaches nobody is noted and carried out later.

pub(crate) mod asking;
pub(crate) mod config;

use std::path::Path;
use std::time::Duration;

use podwire_agent_ipc::addresses::{self, AddressRequest, Response};
use podwire_agent_ipc::client::Connection;
use podwire_agent_ipc::Owner;
use podwire_cni_plugin::{Finding, Plugin, Request, Result};
use podwire_cni_spec::{code, Attachment, Ip, Route};

/// The plugin.
#[derive(Debug)]
pub struct CalicoIpam;

/// How long an ADD waits for the store if nothing is in stock.
const ADDING: Duration = Duration::from_secs(15);

impl Plugin for CalicoIpam {
    fn name(&self) -> &'static str {
        "calico-ipam"
    }

    fn about(&self) -> &'static str {
        "calico-ipam: gives addresses of pools that a cluster shares in blocks"
    }

    fn is_recorded(&self) -> bool {
        false
    }

    fn add(&self, req: &Request<'_>) -> Result<Attachment> {
        Ok(begin(req)?.answer(req)?.lease)
    }

    /// It succeeds whatever the datastore does: what cannot be released now is noted.
    fn del(&self, req: &Request<'_>) -> Result<()> {
        let owner = owner(req);
        let question =
            addresses::Request::Release { owner: owner.clone(), legacy_handle: config::legacy_handle(req) };
        match asking::ask(req, question) {
            Ok(_) => Ok(()),
            Err(_) => addresses::release(Path::new(addresses::STATE_DIR), &owner).map_err(|error| {
                let text =
                    format!("note in {} that addresses are to be given back: {error}", addresses::STATE_DIR);
                podwire_cni_spec::Error::new(code::IO, text).into()
            }),
        }
    }

    fn inspect<'p>(&self, req: &Request<'p>) -> Result<Vec<Finding<'p>>> {
        config::wish(req)?;
        let recorded = req.recorded()?;
        match asking::ask(req, addresses::Request::Inspect { owner: owner(req) })? {
            Response::Assigned { addresses } => {
                let lacks = |ip: &&Ip| !addresses.iter().any(|held| held.addr() == ip.address.addr());
                let text =
                    |ip: &Ip| format!("{} is not {}'s in the datastore", ip.address.addr(), req.container);
                let own = crate::lease::addresses_of(recorded, &req.ifname);
                let mine = recorded.ips.iter().filter(|ip| own.contains(&ip.address));
                Ok(mine.filter(lacks).map(|ip| Finding::new(text(ip))).collect())
            }
            other => Err(unexpected(&other)),
        }
    }

    fn gc(&self, req: &Request<'_>) -> Result<()> {
        collect(req)
    }

    fn status(&self, req: &Request<'_>) -> Result<()> {
        config::wish(req)?;
        asking::ask(req, addresses::Request::Ping).map(drop).map_err(|error| {
            let error = error.to_cni();
            podwire_cni_spec::Error::new(code::NOT_AVAILABLE, error.msg).with_details(error.details).into()
        })
    }
}

/// Addresses that were asked for, and of which nothing was heard yet.
pub(crate) struct Awaited {
    asked: asking::Asked,
    is_explicit: bool,
}

/// What was given, and the line to who gave it, if he is still there.
pub(crate) struct Given {
    pub(crate) lease: Attachment,
    pub(crate) line: Option<Connection>,
}

/// Asks for a pod's addresses, and goes on with something else until they are needed.
pub(crate) fn begin(req: &Request<'_>) -> Result<Awaited> {
    let wish = config::wish(req)?;
    let is_explicit = !wish.ips.is_empty();
    let patience = u64::try_from(ADDING.as_millis()).unwrap_or(u64::MAX);
    let asked = asking::begin(
        req,
        addresses::Request::Assign { owner: owner(req), addresses: wish, timeout_ms: patience },
    )?;
    Ok(Awaited { asked, is_explicit })
}

impl Awaited {
    /// Waits for them.
    pub(crate) fn answer(self, req: &Request<'_>) -> Result<Given> {
        match self.asked.answer_and_stay(req)? {
            (Response::Assigned { addresses }, line) => {
                Ok(Given { lease: result(&addresses, self.is_explicit), line })
            }
            (other, _) => Err(unexpected(&other)),
        }
    }
}

/// Lets go of what attachments have that are not valid.
pub(crate) fn collect(req: &Request<'_>) -> Result<()> {
    let valid = req.valid()?;
    let valid = valid.iter().cloned().collect();
    asking::ask(req, addresses::Request::Collect { network: req.network.to_string(), valid }).map(drop)
}

pub(crate) fn owner(req: &Request<'_>) -> Owner {
    let (container, ifname) = (req.container.clone(), req.ifname.clone());
    Owner { network: req.network.to_string(), container, ifname }
}

/// As Calico's says it: addresses with the prefix lengths of their blocks, and a route for each. No route would mean to
/// Calico's `calico` that the node is to have none to the pod. An address that was asked for by name stands alone.
fn result(addresses: &[ipnet::IpNet], explicit: bool) -> Attachment {
    let shown = |net: &ipnet::IpNet| if explicit { ipnet::IpNet::from(net.addr()) } else { *net };
    let ip = |net: &ipnet::IpNet| Ip { address: shown(net), interface: None, gateway: None };
    let route = |net: &ipnet::IpNet| Route::new(shown(net), None);
    Attachment {
        ips: addresses.iter().map(ip).collect(),
        routes: addresses.iter().map(route).collect(),
        ..Attachment::default()
    }
}

pub(crate) fn unexpected(answer: &Response) -> podwire_cni_plugin::Error {
    let text = format!("the owner of this node's blocks answered something else: {answer:?}");
    podwire_cni_spec::Error::internal(text).with_details("are plugin and agent of one version?").into()
}
