//! dhcp: addresses from a DHCP server on the pod's network.
//!
//! A lease must be renewed while the pod runs, so this plugin only calls the daemon (`podwire dhcp daemon`), which
//! talks to the server from the pod's namespace and renews the lease. If the daemon is down at DEL, the plugin writes a
//! pending release to disk, and the daemon carries it out when it starts.

pub mod daemon;
mod options;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use podwire_agent_ipc::dhcp::{self, Families, LeaseOptions, Response, SOCKET, STATE_DIR};
use podwire_agent_ipc::{client, pending, Owner};
use podwire_cni_plugin::{Finding, Keys, Plugin, Request, Result};
use podwire_cni_spec::{code, json, Attachment, Version};
use serde::Deserialize;
use serde_json::Value;

/// The plugin.
#[derive(Debug)]
pub struct Dhcp;

/// The timeout of an acquire request, for a daemon that hangs. The daemon has its own time limit, 208 s unless a flag sets
/// another one; the runtime's deadline is usually shorter.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(3600);
/// The timeout of other requests, which the daemon answers at once.
const TIMEOUT: Duration = Duration::from_secs(5);

impl Plugin for Dhcp {
    fn name(&self) -> &'static str {
        "dhcp"
    }

    fn about(&self) -> &'static str {
        "dhcp: gets addresses from a DHCP server on the pod's network"
    }

    fn keys(&self) -> Option<Keys> {
        Some(Keys::new(&[CONFIG_KEYS]))
    }

    fn is_recorded(&self) -> bool {
        false
    }

    fn add(&self, req: &Request<'_>) -> Result<Attachment> {
        acquire(req, read(req)?)
    }

    fn del(&self, req: &Request<'_>) -> Result<()> {
        let owner = owner(req);
        // DEL must succeed while the daemon is down.
        match client::request(&socket(req), &dhcp::Request::Release { owner: owner.clone() }, TIMEOUT) {
            Ok(_) => Ok(()),
            Err(_) => written(pending::release(Path::new(STATE_DIR), &owner)),
        }
    }

    fn inspect<'p>(&self, req: &Request<'p>) -> Result<Vec<Finding<'p>>> {
        let conf = read(req)?;
        let recorded = req.recorded()?;
        match call(req, &dhcp::Request::Inspect { owner: owner(req) }, TIMEOUT)? {
            Response::Lease { result } => compare(&req.ifname, recorded, &result),
            Response::NoLease { reason: why } => {
                let text = format!("the DHCP lease of {} is not valid: {why}", req.ifname);
                let req = req.clone();
                Ok(vec![Finding::new(text).repaired_by(move || reacquire(&req, conf))])
            }
            other => Err(unexpected(other)),
        }
    }

    fn gc(&self, req: &Request<'_>) -> Result<()> {
        let valid = req.valid()?;
        let valid: Vec<_> = valid.iter().cloned().collect();
        let network = req.network.to_string();
        let question = dhcp::Request::Collect { network: network.clone(), valid: valid.clone() };
        match client::request(&socket(req), &question, TIMEOUT) {
            Ok(_) => Ok(()),
            Err(_) => written(pending::release_all_except(Path::new(STATE_DIR), &network, &valid)),
        }
    }

    fn status(&self, req: &Request<'_>) -> Result<()> {
        read(req)?;
        match client::request(&socket(req), &dhcp::Request::Ping, TIMEOUT) {
            Ok(Response::Done) => Ok(()),
            Ok(other) => Err(unexpected(other)),
            Err(error) => Err(unreachable(req, code::NOT_AVAILABLE, &error)),
        }
    }
}

/// The keys of the config.
const CONFIG_KEYS: &[&str] = &[
    "ipam.daemonSocketPath",
    "ipam.family",
    "ipam.priority",
    "ipam.provide[].option",
    "ipam.provide[].value",
    "ipam.provide[].fromArg",
    "ipam.request[].option",
    "ipam.request[].skipDefault",
];

#[derive(Default, Deserialize)]
#[serde(default)]
struct Document {
    ipam: Option<Section>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Section {
    priority: u32,
    family: String,
    provide: Vec<options::Provide>,
    request: Vec<options::Request>,
    /// Read by [`socket`]; here only to check its type.
    #[allow(dead_code)]
    daemon_socket_path: String,
}

/// The request to the daemon that the config describes.
fn read(req: &Request<'_>) -> Result<LeaseOptions> {
    let document: Document = req.config()?;
    let missing = || podwire_cni_spec::Error::invalid_config("IPAM config missing 'ipam' key");
    let section = document.ipam.ok_or_else(missing)?;
    let family = match section.family.as_str() {
        "" | "ipv4" => Families::Ipv4,
        "ipv6" => Families::Ipv6,
        "dual" => Families::Dual,
        other => {
            let text = format!("ipam.family: {other:?} is not ipv4, ipv6 or dual");
            return Err(podwire_cni_spec::Error::invalid_config(text).into());
        }
    };
    Ok(LeaseOptions {
        families: family,
        requested: options::requested(&section.request)?,
        provided: options::provided(&section.provide, &req.args)?,
        route_priority: Some(section.priority).filter(|priority| *priority > 0),
        previous_addresses: Vec::new(),
    })
}

/// The daemon's socket. Read separately, because DEL needs it even if the rest of the config is invalid.
fn socket(req: &Request<'_>) -> PathBuf {
    let ipam = json::get(&req.config, "ipam");
    let path = ipam.and_then(|ipam| json::get(ipam, "daemonSocketPath")).and_then(|path| path.as_str());
    PathBuf::from(path.filter(|path| !path.is_empty()).unwrap_or(SOCKET))
}

fn owner(req: &Request<'_>) -> Owner {
    let (container, ifname) = (req.container.clone(), req.ifname.clone());
    Owner { network: req.network.to_string(), container, ifname }
}

fn acquire(req: &Request<'_>, options: LeaseOptions) -> Result<Attachment> {
    // Made absolute here: the daemon has another working directory.
    let netns = std::path::absolute(req.netns()?.path()).unwrap_or_default();
    match call(req, &dhcp::Request::Acquire { owner: owner(req), netns, options }, ACQUIRE_TIMEOUT)? {
        Response::Lease { result } => Ok(Attachment::from_json(&result, Version::V1_1_0)?),
        other => Err(unexpected(other)),
    }
}

/// Acquires a lease for the recorded addresses: a pod's addresses must not change while it runs.
fn reacquire(req: &Request<'_>, options: LeaseOptions) -> Result<()> {
    let before: Vec<IpAddr> = req.recorded()?.ips.iter().map(|ip| ip.address.addr()).collect();
    let leased = acquire(req, LeaseOptions { previous_addresses: before.clone(), ..options })?;
    match leased.ips.iter().find(|ip| !before.contains(&ip.address.addr())) {
        None => Ok(()),
        Some(other) => {
            let text = format!("the DHCP server leased {} instead of the pod's address", other.address);
            Err(podwire_cni_spec::Error::internal(text)
                .with_details("detach and attach the pod again")
                .into())
        }
    }
}

/// Every leased address is recorded.
fn compare<'p>(ifname: &str, recorded: &Attachment, result: &Value) -> Result<Vec<Finding<'p>>> {
    let leased = Attachment::from_json(result, Version::V1_1_0)?;
    let others = leased.ips.iter().filter(|ip| !recorded.ips.iter().any(|one| one.address == ip.address));
    Ok(others
        .map(|ip| Finding::new(format!("the DHCP server has since leased {} to {ifname}", ip.address)))
        .collect())
}

fn call(req: &Request<'_>, question: &dhcp::Request, timeout: Duration) -> Result<Response> {
    match client::request(&socket(req), question, timeout) {
        Err(error) => Err(unreachable(req, code::TRY_AGAIN, &error)),
        Ok(Response::Failed { code, msg, hint }) => {
            let text = format!("error calling DHCP.Allocate: {msg}");
            Err(podwire_cni_spec::Error::new(code, text).with_hint(hint).into())
        }
        Ok(answer) => Ok(answer),
    }
}

fn unreachable(req: &Request<'_>, code: u32, error: &std::io::Error) -> podwire_cni_plugin::Error {
    let why = error.to_string();
    // As Go prints an errno: in lower case and without its number.
    let why = why.split(" (os error").next().unwrap_or_default().to_lowercase();
    let text = format!("error dialing DHCP daemon: dial unix {}: connect: {why}", socket(req).display());
    let hint = "start it: `systemctl start podwire-dhcp.socket`, or `podwire dhcp daemon`; if it listens elsewhere, \
                set ipam.daemonSocketPath";
    podwire_cni_spec::Error::new(code, text).with_hint(hint).into()
}

fn unexpected(answer: Response) -> podwire_cni_plugin::Error {
    let text = format!("the DHCP daemon sent an unexpected response: {answer:?}");
    let hint = "install the plugins and the daemon of one version";
    podwire_cni_spec::Error::internal(text).with_details(hint).into()
}

fn written(outcome: std::io::Result<()>) -> Result<()> {
    let failed = |error| {
        let text = format!("write the pending release of the lease into {STATE_DIR}: {error}");
        podwire_cni_spec::Error::new(code::IO, text).into()
    };
    outcome.map_err(failed)
}
