//! CHECK of a subinterface: its kind, mode, master, and its recorded configuration.

use podwire_cni_plugin::{Finding, Request, Result};
use podwire_cni_spec::{Attachment, Interface};
use podwire_kernel::child::Driver;
use podwire_kernel::{Host, Link, Undo};

use super::interface::Subinterface;
use super::master::Master;
use crate::inspection::{self, VethEnds};
use crate::lease;

pub(super) fn inspect<'p>(req: &Request<'p>, wanted: &Subinterface) -> Result<Vec<Finding<'p>>> {
    req.recorded_or(match wanted.driver {
        Driver::Vlan(_) => "vlan: Required prevResult missing",
        Driver::Dummy => "dummy: Required prevResult missing",
        Driver::Macvlan(_) => "required prevResult missing",
        Driver::Ipvlan(_) => "Required prevResult missing",
    })?;
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
    // Without `mtu` in the config it follows the master's.
    if let Ok(mtu @ 1..) = u32::try_from(wanted.mtu) {
        findings.extend(inspection::mtu(req, VethEnds { pod: &link, node: None }, mtu));
    }
    findings.extend(inspection::pod_interface(&without_recorded_mac(req, wanted.driver), &mut pod)?);
    Ok(findings)
}

/// The request, for ipvlan without the recorded hardware address: an ipvlan always has its master's current one.
fn without_recorded_mac<'p>(req: &Request<'p>, driver: Driver) -> Request<'p> {
    let mut req = req.clone();
    if let (Driver::Ipvlan(_), Some(recorded)) = (driver, &mut req.prev) {
        recorded.interfaces.iter_mut().for_each(|interface| interface.mac.clear());
    }
    req
}

/// The interface was deleted, or its master was gone for a moment (a reloaded driver). The repair creates it again from
/// the recorded result: the lease is still held.
fn missing<'p>(req: &Request<'p>, wanted: &Subinterface) -> Finding<'p> {
    let finding = Finding::new(format!("the pod has no interface {}", req.ifname));
    // The recorded result does not hold the master that the previous plugin named.
    if wanted.master == Master::FromChain {
        return finding;
    }
    let (again, wanted) = (req.clone(), wanted.clone());
    finding.repaired_by(move || create_again(&again, wanted))
}

fn create_again(req: &Request<'_>, wanted: Subinterface) -> Result<()> {
    let recorded = req.recorded()?;
    let own = |interface: &Interface| interface.name == req.ifname && !interface.sandbox.is_empty();
    let mac = recorded.interfaces.iter().find(|one| own(one)).and_then(|one| one.mac.parse().ok());
    // An ipvlan's hardware address is its master's and cannot be set.
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

/// The interface is on the master that the config names. Without one in the config, any master is accepted.
fn master<'p>(wanted: &Subinterface, pod: &mut Host, link: &Link) -> Result<Option<Finding<'p>>> {
    let mut node = Host::here()?;
    let found = wanted.master.named(&mut node, pod)?;
    // If the master is of the same kind, the kernel uses the master's own master.
    let differs = found.filter(|master| link.link != Some(master.index) && master.kind != link.kind);
    Ok(differs
        .map(|master| Finding::new(format!("interface {} is not on master {}", link.name, master.name))))
}

fn mode<'p>(req: &Request<'p>, wanted: Driver, link: &Link) -> Option<Finding<'p>> {
    let Some(found) = Driver::of(link) else {
        return Some(Finding::new(format!("interface {} is in an unknown mode", link.name)));
    };
    if wanted.fits(found) {
        return None;
    }
    let finding = Finding::new(format!("interface {} is {found}, not {wanted}", link.name));
    if !wanted.can_change_from(found) {
        return Some(finding);
    }
    Some(finding.repaired_by(inspection::change(req, wanted.change(link))))
}
