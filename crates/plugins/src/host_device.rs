//! host-device: a device of the node's own goes into the pod, and comes back when the pod ends.
//!
//! There is one of it, so while it is away the node must not forget what it was called: its old name travels with it,
//! as its alias. A device that a driver keeps for a program (DPDK) has no link to move; its pod gets addresses only.

mod inherited;
mod loan;
mod mending;
mod sysfs;
mod wanted;

use std::path::Path;

use podwire_cni_plugin::{delegate, ledger, Context, Error, Finding, Plugin, Request, Result};
use podwire_cni_spec::{Attachment, Interface, Version};
use podwire_kernel::{Host, Link, LinkConfig, Undo};

use crate::{lease, pod_interface};
use loan::Loan;
use sysfs::Sysfs;
use wanted::{Conf, Wanted};

/// The plugin.
#[derive(Debug)]
pub struct HostDevice;

impl Plugin for HostDevice {
    fn name(&self) -> &'static str {
        "host-device"
    }

    fn about(&self) -> &'static str {
        "host-device: gives a device of the node to a pod"
    }

    fn bypasses_host_firewall(&self) -> bool {
        true
    }

    fn add(&self, req: &Request<'_>) -> Result<Attachment> {
        let (conf, wanted) = read(req)?;
        let mut node = Host::here()?;
        let mut undo = Undo::new();
        let Some(device) = wanted.find(&mut node, &Sysfs::default())? else {
            // A program has it, and no link is there to move.
            let mut result = obtain(req, &mut undo)?;
            result.dns = lease::choose_dns(&conf.dns, std::mem::take(&mut result.dns));
            undo.keep();
            return Ok(result);
        };
        let mut pod = req.pod()?;
        let loan = Loan::of(&mut node, &device)?;
        let lent = loan.clone();
        undo.push(move || lent.take_back(req));
        let inside = loan.hand_to(req, &mut node, &mut pod)?;
        // Some IPAM plugins (dhcp) talk through the device: it is in its place by now.
        let mut result = obtain(req, &mut undo)?;
        let inherited = match conf.use_interface_network {
            true => inherited::from(loan.belongings()),
            false => LinkConfig::default(),
        };
        wire(&mut pod, &inside, &mut result, &inherited)?;
        result.interfaces = vec![interface(req, &wanted, &pod.get_link(&req.ifname)?)];
        result.ips.iter_mut().for_each(|ip| ip.interface = Some(0));
        result.dns = lease::choose_dns(&conf.dns, std::mem::take(&mut result.dns));
        undo.keep();
        Ok(result)
    }

    fn del(&self, req: &Request<'_>) -> Result<()> {
        let mut errors = Vec::new();
        errors.extend(lease::release(req).err());
        // A config that lost the device's name is good enough to bring home what is there.
        let wanted = req.config::<Conf>().and_then(|conf| Wanted::read(req, &conf)).ok();
        errors.extend(bring_home(req, wanted.as_ref()).err());
        Error::all(errors)
    }

    fn inspect<'p>(&self, req: &Request<'p>) -> Result<Vec<Finding<'p>>> {
        let (_, wanted) = read(req)?;
        let mut findings = lease::inspect(req)?;
        findings.extend(mending::inspect(req, &wanted)?);
        Ok(findings)
    }

    fn gc(&self, req: &Request<'_>) -> Result<()> {
        req.valid()?;
        let mut errors = Vec::new();
        errors.extend(lease::collect(req).err());
        if let Ok((_, wanted)) = read(req) {
            let mut node = Host::here()?;
            let is_it = |link: &Link| wanted.is(link) == Some(true);
            errors.extend(loan::rename_home(&mut node, is_it, &[]).err());
        }
        Error::all(errors)
    }

    /// Whether the device is here to be given away.
    fn status(&self, req: &Request<'_>) -> Result<()> {
        let conf: Conf = req.config()?;
        if !Wanted::comes_later(req, &conf) {
            let found = Wanted::read(req, &conf)?.find(&mut Host::here()?, &Sysfs::default());
            found.map_err(not_now)?;
        }
        lease::status(req)
    }
}

fn read(req: &Request<'_>) -> Result<(Conf, Wanted)> {
    let conf: Conf = req.config()?;
    let wanted = Wanted::read(req, &conf)?;
    Ok((conf, wanted))
}

/// A device that is away is nobody's mistake: no pod can be taken until it is back.
fn not_now(error: Error) -> Error {
    let error = error.to_cni();
    match error.code {
        podwire_cni_spec::code::INTERNAL => {
            podwire_cni_spec::Error { code: podwire_cni_spec::code::NOT_AVAILABLE, ..error }.into()
        }
        _ => error.into(),
    }
}

/// Addresses, if there is anybody to ask for them: a device may be used without.
fn obtain<'a>(req: &'a Request<'a>, undo: &mut Undo<'a>) -> Result<Attachment> {
    match delegate::ipam(req) {
        Some(_) => lease::obtain(req, undo),
        None => Ok(Attachment::default()),
    }
}

/// Addresses and routes of the lease first, then those that came with the device.
fn wire(pod: &mut Host, inside: &Link, result: &mut Attachment, inherited: &LinkConfig) -> Result<()> {
    // It has neighbours who may remember another owner of an address.
    let options = pod_interface::Options { announce: true, ..pod_interface::Options::default() };
    if inherited.addresses.iter().any(|one| one.ip.is_ipv6()) {
        pod.run(|| pod_interface::enable_ipv6(&inside.name, false))??;
    }
    pod_interface::configure(pod, inside, result, options)?;
    inherited.restore(pod, inside.index).doing(|| format!("give {} what it had on the node", inside.name))?;
    inherited::add(result, inherited);
    Ok(())
}

fn interface(req: &Request<'_>, wanted: &Wanted, link: &Link) -> Interface {
    let sandbox = req.netns.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    let plain = Interface { name: link.name.clone(), mac: link.mac_text(), sandbox, ..Interface::default() };
    match wanted {
        _ if req.version < Version::V1_1_0 => plain,
        Wanted::Bus(_, id) if id.contains(':') => Interface { mtu: link.mtu, pci_id: id.clone(), ..plain },
        _ => Interface { mtu: link.mtu, ..plain },
    }
}

/// Brings the device back to the node from wherever it is.
fn bring_home(req: &Request<'_>, wanted: Option<&Wanted>) -> Result<()> {
    let mut node = Host::here()?;
    if let Some(mut pod) = find_sandbox(req)? {
        if let Some(device) = loan::find(req, wanted, &mut pod)? {
            return loan::bring_home(&mut pod, &device, &mut node);
        }
    }
    loan::rename_own(req, wanted, &mut node)
}

/// The pod. If the runtime does not tell where it is any more, the record does: as long as that namespace lives the device
/// is in it. A path that a process number is part of may be another pod's by now.
fn find_sandbox(req: &Request<'_>) -> Result<Option<Host>> {
    if req.netns.is_some() {
        return req.find_pod();
    }
    let recorded = req.prev.iter().flat_map(|prev| &prev.interfaces).find(|one| one.name == req.ifname);
    let path = recorded.map(|one| Path::new(&one.sandbox)).filter(|path| path.is_absolute());
    let Some(path) = path.filter(|path| !path.starts_with("/proc")) else { return Ok(None) };
    let entries =
        ledger::find(&req.owner(), "host-device").map(|account| account.entries).unwrap_or_default();
    match ledger::find_recorded_netns(path, entries.iter())? {
        Some(netns) => Ok(Some(Host::within(netns)?)),
        None => Ok(None),
    }
}
