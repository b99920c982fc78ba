//! CHECK: the pod's interface is of its kind, in its mode, on its master, and configured as recorded.

use podwire_cni_plugin::{Finding, Request, Result};
use podwire_cni_spec::{Attachment, Interface};
use podwire_kernel::child::Driver;
use podwire_kernel::{Host, Link, Undo};

use super::{Master, Subinterface};
use crate::{inspection, lease};

pub(super) fn inspect<'p>(req: &Request<'p>, wanted: &Subinterface) -> Result<Vec<Finding<'p>>> {
    req.recorded()?;
    let mut findings = lease::inspect(req)?;
    let mut pod = req.pod()?;
    let Some(link) = pod.find_link(&req.ifname)? else {
        findings.push(missing(req, wanted));
        return Ok(findings);
    };
    let (name, kind) = (&link.name, wanted.driver.kind());
    if link.kind != kind {
        let is = if link.kind.is_empty() { "of another kind" } else { &link.kind };
        findings.push(Finding::new(format!("interface {name} is {is}, not {kind}")));
        return Ok(findings);
    }
    findings.extend(master(wanted, &mut pod, &link)?);
    findings.extend(mode(req, wanted.driver, &link));
    // Without one in the config it is the master's, and follows it.
    if wanted.mtu != 0 {
        findings.extend(inspection::mtu(req, (&link, None), wanted.mtu));
    }
    findings.extend(inspection::pod_interface(&as_recorded(req, wanted.driver), &mut pod)?);
    Ok(findings)
}

/// An ipvlan has its master's hardware address, whichever that is by now.
fn as_recorded<'p>(req: &Request<'p>, driver: Driver) -> Request<'p> {
    let mut req = req.clone();
    if let (Driver::Ipvlan(_), Some(recorded)) = (driver, &mut req.prev) {
        recorded.interfaces.iter_mut().for_each(|interface| interface.mac.clear());
    }
    req
}

/// Somebody deleted it, or its master went for a moment (a driver that was loaded again): it can be made anew from the
/// record, since its lease is still held.
fn missing<'p>(req: &Request<'p>, wanted: &Subinterface) -> Finding<'p> {
    let finding = Finding::new(format!("the pod has no interface {}", req.ifname));
    // The record does not tell what the plugin before had named.
    if wanted.master == Master::FromChain {
        return finding;
    }
    let (again, wanted) = (req.clone(), wanted.clone());
    finding.mended_by(move || revive(&again, wanted))
}

fn revive(req: &Request<'_>, wanted: Subinterface) -> Result<()> {
    let recorded = req.recorded()?;
    let own = |interface: &Interface| interface.name == req.ifname && !interface.sandbox.is_empty();
    let mac = recorded.interfaces.iter().find(|one| own(one)).and_then(|one| one.mac.parse().ok());
    // It follows from the master, unless the driver lets a child choose.
    let mac = mac.filter(|_| !matches!(wanted.driver, Driver::Ipvlan(_)));
    let is_own = |index: Option<usize>| index.and_then(|n| recorded.interfaces.get(n)).is_none_or(own);
    let again = Attachment {
        ips: recorded.ips.iter().filter(|ip| is_own(ip.interface)).cloned().collect(),
        ..recorded.clone()
    };
    let mut undo = Undo::new();
    let mut pod = req.pod()?;
    let wanted = Subinterface { mac, ..wanted };
    let link = wanted.create(req, &mut pod, &mut undo)?;
    wanted.configure(&mut pod, &link, &again)?;
    undo.keep();
    Ok(())
}

/// The master that the config names. (Where it names none, the one that it was at the time of ADD is as good as any.)
fn master<'p>(wanted: &Subinterface, pod: &mut Host, link: &Link) -> Result<Option<Finding<'p>>> {
    let mut node = Host::here()?;
    let found = wanted.master.named(&mut node, pod)?;
    // What hangs on one of its own kind really hangs on that one's master.
    let differs = found.filter(|master| link.link != Some(master.index) && master.kind != link.kind);
    Ok(differs
        .map(|master| Finding::new(format!("interface {} does not hang on {}", link.name, master.name))))
}

fn mode<'p>(req: &Request<'p>, wanted: Driver, link: &Link) -> Option<Finding<'p>> {
    let Some(found) = Driver::of(link) else {
        return Some(Finding::new(format!("interface {} is in a mode that is not known here", link.name)));
    };
    if wanted.fits(found) {
        return None;
    }
    let finding = Finding::new(format!("interface {} is {found}, not {wanted}", link.name));
    Some(match wanted.can_change_from(found) {
        true => finding.mended_by(inspection::change(req, wanted.change(link))),
        false => finding,
    })
}
