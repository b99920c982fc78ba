//! host-device: moves a device of the node into the pod, and back at DEL.
//!
//! While the device is in the pod, its alias holds the name that it had on the node. A device with a user-space driver
//! (DPDK) has no link to move: its pod gets addresses only.

mod configure;
mod hold;
mod inherited;
mod repair;
mod selector;
mod sysfs;

use std::path::Path;

use podwire_cni_plugin::{delegate, ledger, Error, Finding, Keys, Plugin, Request, Result};
use podwire_cni_spec::{Attachment, Interface, Version};
use podwire_kernel::{Host, Link, LinkConfig, Undo};

use crate::lease;
use configure::configure;
use hold::Hold;
use selector::{Conf, Selector};
use sysfs::Sysfs;

/// The plugin.
#[derive(Debug)]
pub struct HostDevice;

impl Plugin for HostDevice {
    fn name(&self) -> &'static str {
        "host-device"
    }

    fn about(&self) -> &'static str {
        "host-device: moves a device of the node into a pod"
    }

    fn keys(&self) -> Option<Keys> {
        Some(Keys::new(&[selector::CONFIG_KEYS, crate::keys::DNS, crate::keys::IPAM]))
    }

    fn bypasses_host_firewall(&self) -> bool {
        true
    }

    fn add(&self, req: &Request<'_>) -> Result<Attachment> {
        let (conf, selector) = read(req)?;
        let mut node = Host::here()?;
        let mut undo = Undo::new();
        let Some(device) = selector.find(&mut node, &Sysfs::default())? else {
            // A user-space driver has the device: there is no link to move.
            let mut result = obtain(req, &mut undo)?;
            result.dns = lease::choose_dns(req, &conf.dns, std::mem::take(&mut result.dns));
            undo.keep();
            return Ok(result);
        };
        let mut pod = req.pod()?;
        let hold = Hold::of(&mut node, &device)?;
        let held = hold.clone();
        undo.push(move || held.undo(req));
        let link = hold.move_to_pod(req, &mut node, &mut pod)?;
        // After the move: some IPAM plugins (dhcp) send through the device.
        let mut result = obtain(req, &mut undo)?;
        let inherited = if conf.use_interface_network {
            inherited::from(hold.link_config())
        } else {
            LinkConfig::default()
        };
        configure(&mut pod, &link, &mut result, &inherited)?;
        result.interfaces = vec![interface(req, &selector, &pod.get_link(&req.ifname)?)];
        result.ips.iter_mut().for_each(|ip| ip.interface = Some(0));
        result.dns = lease::choose_dns(req, &conf.dns, std::mem::take(&mut result.dns));
        undo.keep();
        Ok(result)
    }

    fn del(&self, req: &Request<'_>) -> Result<()> {
        let mut errors = Vec::new();
        errors.extend(lease::release(req).err());
        // DEL works with a config that no longer names the device, too.
        let selector = req.config::<Conf>().and_then(|conf| Selector::read(req, &conf)).ok();
        errors.extend(return_device(req, selector.as_ref()).err());
        Error::all(errors)
    }

    fn inspect<'p>(&self, req: &Request<'p>) -> Result<Vec<Finding<'p>>> {
        let (_, selector) = read(req)?;
        let mut findings = lease::inspect(req)?;
        findings.extend(repair::inspect(req, &selector)?);
        Ok(findings)
    }

    fn gc(&self, req: &Request<'_>) -> Result<()> {
        req.valid()?;
        let mut errors = Vec::new();
        errors.extend(lease::collect(req).err());
        if let Ok((_, selector)) = read(req) {
            let mut node = Host::here()?;
            let is_selected = |link: &Link| selector.matches(link) == Some(true);
            errors.extend(hold::restore_names(&mut node, is_selected, &[]).err());
        }
        Error::all(errors)
    }

    /// Fails if the device is not on the node.
    fn status(&self, req: &Request<'_>) -> Result<()> {
        let conf: Conf = req.config()?;
        if !Selector::is_from_runtime(req, &conf) {
            let found = Selector::read(req, &conf)?.find(&mut Host::here()?, &Sysfs::default());
            found.map_err(not_available)?;
        }
        lease::status(req)
    }
}

fn read(req: &Request<'_>) -> Result<(Conf, Selector)> {
    let conf: Conf = req.config()?;
    let selector = Selector::read(req, &conf)?;
    Ok((conf, selector))
}

/// A missing device is a temporary condition, not a wrong config: another pod may have it.
fn not_available(error: Error) -> Error {
    let error = error.to_cni();
    match error.code {
        podwire_cni_spec::code::INTERNAL => {
            podwire_cni_spec::Error { code: podwire_cni_spec::code::NOT_AVAILABLE, ..error }.into()
        }
        _ => error.into(),
    }
}

/// The addresses, if the config has an IPAM plugin.
fn obtain<'a>(req: &'a Request<'a>, undo: &mut Undo<'a>) -> Result<Attachment> {
    match delegate::ipam(req) {
        Some(_) => lease::obtain(req, undo),
        None => Ok(Attachment::default()),
    }
}

fn interface(req: &Request<'_>, selector: &Selector, link: &Link) -> Interface {
    let sandbox = req.netns.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    let plain = Interface { name: link.name.clone(), mac: link.mac_text(), sandbox, ..Interface::default() };
    match selector {
        _ if req.version < Version::V1_1_0 => plain,
        Selector::Bus(_, id) if id.contains(':') => Interface { mtu: link.mtu, pci_id: id.clone(), ..plain },
        _ => Interface { mtu: link.mtu, ..plain },
    }
}

/// Moves the device back to the node. If it is already there, restores its name.
fn return_device(req: &Request<'_>, selector: Option<&Selector>) -> Result<()> {
    let mut node = Host::here()?;
    if let Some(mut pod) = find_sandbox(req)? {
        if let Some(device) = hold::find(req, selector, &mut pod)? {
            return hold::move_to_node(&mut pod, &device, &mut node);
        }
    }
    hold::restore_own_name(req, selector, &mut node)
}

/// The pod's namespace: from the runtime, else from the recorded result. The device is in that namespace as long as it
/// exists. A recorded path below /proc is not used, because its PID may belong to another pod now.
fn find_sandbox(req: &Request<'_>) -> Result<Option<Host>> {
    if req.netns.is_some() {
        return req.find_pod();
    }
    let recorded = req.prev.iter().flat_map(|prev| &prev.interfaces).find(|one| one.name == req.ifname);
    let path = recorded.map(|one| Path::new(&one.sandbox)).filter(|path| path.is_absolute());
    let Some(path) = path.filter(|path| !path.starts_with("/proc")) else { return Ok(None) };
    let entries = ledger::find(&req.owner(), "host-device").map(|file| file.entries).unwrap_or_default();
    match ledger::find_recorded_netns(path, entries.iter())? {
        Some(netns) => Ok(Some(Host::within(netns)?)),
        None => Ok(None),
    }
}
