//! vrf: puts the pod's interface into a VRF, with a routing table for the VRF's interfaces only. Pods with interfaces
//! in several networks can then have overlapping addresses, or several default routes.
//!
//! To put an interface into a VRF, the kernel takes it down and up again. IPv4 addresses survive that, IPv6 addresses
//! may not, and routes do not. The plugin restores what was lost, the routes in the VRF's table.

mod table;

use podwire_cni_plugin::{Context, Finding, Keys, Plugin, Request, Result};
use podwire_cni_spec::{Attachment, IfName, Version};
use podwire_kernel::rt::{link, route};
use podwire_kernel::{vrf, Host, Link, LinkConfig, Undo};
use serde::Deserialize;

use crate::pod_lock::{self, PodLock};
use crate::{inspection, pod_interface};

/// The plugin.
#[derive(Debug)]
pub struct Vrf;

/// The keys of the config.
const CONFIG_KEYS: &[&str] = &["vrfname", "table"];

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Conf {
    vrfname: String,
    /// 0 selects the lowest free table.
    table: u32,
}

impl Plugin for Vrf {
    fn name(&self) -> &'static str {
        "vrf"
    }

    fn about(&self) -> &'static str {
        "vrf: puts a pod's interface into a VRF"
    }

    fn keys(&self) -> Option<Keys> {
        Some(Keys::new(&[CONFIG_KEYS]))
    }

    fn versions(&self) -> &'static [Version] {
        Version::from(Version::V0_3_1)
    }

    fn add(&self, req: &Request<'_>) -> Result<Attachment> {
        let conf = Conf::read(req)?;
        let result = recorded(req)?.clone();
        let mut pod = req.pod()?;
        // Two interfaces that are attached at once must not choose the same free table.
        let _lock = PodLock::acquire(&pod)?;
        let interface = interface(req, &mut pod)?;
        let existed = pod.find_link(&conf.vrfname)?.is_some();
        let mut undo = Undo::new();
        let vrf = conf.ensure(&mut pod)?;
        if !existed || interface.master.is_none() {
            undo.push(|| drop(leave(req, &conf, existed)));
        }
        join(&mut pod, &interface, &vrf)?;
        undo.keep();
        Ok(result)
    }

    fn del(&self, req: &Request<'_>) -> Result<()> {
        // With an invalid config ADD created nothing.
        let Ok(conf) = Conf::read(req) else { return Ok(()) };
        let Some(pod) = req.find_pod()? else { return Ok(()) };
        // The last interface deletes the VRF: no other ADD may join it meanwhile.
        let _lock = PodLock::acquire(&pod)?;
        leave(req, &conf, false)
    }

    fn inspect<'p>(&self, req: &Request<'p>) -> Result<Vec<Finding<'p>>> {
        let conf = Conf::read(req)?;
        let recorded = recorded(req)?;
        let mut pod = req.pod()?;
        let interface = interface(req, &mut pod)?;
        let name = &conf.vrfname;
        let again = || {
            let req = req.clone();
            move || {
                Vrf.add(&req)?;
                // The kernel deleted the routes when the interface left the VRF.
                Vrf.inspect(&req)?.into_iter().try_for_each(Finding::repair)
            }
        };
        let Some(vrf) = vrf::find(&mut pod, name)? else {
            return Ok(vec![Finding::new(format!("the pod has no VRF {name}")).repaired_by(again())]);
        };
        let mut findings = Vec::new();
        let table = vrf::table(&vrf).unwrap_or_default();
        if conf.table != 0 && conf.table != table {
            findings.push(Finding::new(format!("VRF {name} has table {table}, not {}", conf.table)));
        }
        if !vrf.is_up() {
            let up = inspection::change(req, link::up(&vrf));
            findings.push(Finding::new(format!("VRF {name} is down")).repaired_by(up));
        }
        if interface.master != Some(vrf.index) {
            let text = format!("Failed to find {} associated to vrf {name}", req.ifname);
            findings.push(Finding::new(text).repaired_by(again()));
        } else {
            findings.extend(routes(req, &mut pod, &interface, recorded, table)?);
        }
        Ok(findings)
    }

    /// Everything else is in the pods' namespaces.
    fn gc(&self, _: &Request<'_>) -> Result<()> {
        pod_lock::collect()
    }

    fn status(&self, req: &Request<'_>) -> Result<()> {
        Conf::read(req)?;
        if vrf::is_supported().doing(|| "check whether the kernel has VRFs".into())? {
            return Ok(());
        }
        Err(podwire_cni_spec::Error::new(podwire_cni_spec::code::NOT_AVAILABLE, NO_VRF).into())
    }
}

const NO_VRF: &str = "the kernel has no VRFs: it needs CONFIG_NET_VRF, or the module vrf";

impl Conf {
    fn read(req: &Request<'_>) -> Result<Conf> {
        let conf: Conf = req.config()?;
        if conf.vrfname.is_empty() {
            let text = "configuration is expected to have a valid vrf name";
            return Err(podwire_cni_spec::Error::invalid_config(text).with_hint("set vrfname").into());
        }
        if let Err(error) = IfName::parse(&conf.vrfname) {
            return invalid(format!("vrfname: {}", error.msg));
        }
        if conf.vrfname == req.ifname {
            return invalid(format!("vrfname: {:?} is the name of the pod's interface", conf.vrfname));
        }
        table::check(conf.table)?;
        Ok(conf)
    }

    /// The VRF, created if it does not exist.
    fn ensure(&self, pod: &mut Host) -> Result<Link> {
        let name = &self.vrfname;
        if let Some(vrf) = vrf::find(pod, name).doing(|| format!("vrfname: {name}"))? {
            let table = vrf::table(&vrf).unwrap_or_default();
            if self.table != 0 && self.table != table {
                let text = format!("VRF {name} already exist with different routing table {table}");
                let hint = format!("the config wants table {}", self.table);
                return Err(podwire_cni_spec::Error::invalid_config(text).with_hint(hint).into());
            }
            if !vrf.is_up() {
                pod.route.request(link::up(&vrf))?;
            }
            return Ok(vrf);
        }
        let table = match self.table {
            0 => table::free(pod)?,
            table => table,
        };
        vrf::create(pod, name, table).doing(|| format!("could not add VRF {name}"))
    }
}

/// Puts the interface into the VRF and restores its addresses and routes.
fn join(pod: &mut Host, interface: &Link, vrf: &Link) -> Result<()> {
    if interface.master == Some(vrf.index) {
        return Ok(());
    }
    if let Some(master) = interface.master {
        let master = link::find_index(&mut pod.route, master)?.map(|link| link.name).unwrap_or_default();
        let text = format!("interface {} has already a master set: {master}", interface.name);
        return Err(podwire_cni_spec::Error::internal(text).into());
    }
    let table = vrf::table(vrf).unwrap_or_default();
    let link_config = LinkConfig::read(pod, interface.index)?.with_table(route::MAIN, table);
    let changed = vrf::assign(pod, interface, Some(vrf));
    changed.doing(|| format!("could not set vrf {} as master of {}", vrf.name, interface.name))?;
    let restored = link_config.restore(pod, interface.index);
    restored.doing(|| format!("could not restore addresses and routes of {} @ {}", interface.name, vrf.name))
}

/// Takes the interface out of the VRF and moves its routes back to the main table. Deletes a VRF without interfaces,
/// unless `keep` is set, or it has another table than the config: then it is not this attachment's, and ADD failed.
fn leave(req: &Request<'_>, conf: &Conf, keep: bool) -> Result<()> {
    let Some(mut pod) = req.find_pod()? else { return Ok(()) };
    let Some(vrf) = pod.find_link(&conf.vrfname)?.filter(|link| link.kind == vrf::KIND) else {
        return Ok(());
    };
    let members: Vec<Link> =
        link::list(&mut pod.route)?.into_iter().filter(|link| link.master == Some(vrf.index)).collect();
    let own = members.iter().find(|link| link.name == req.ifname);
    let table = vrf::table(&vrf).unwrap_or_default();
    let keep = keep || (own.is_none() && conf.table != 0 && conf.table != table);
    let link_config = own.map(|link| LinkConfig::read(&mut pod, link.index)).transpose()?;
    match own {
        Some(own) if keep || members.len() > 1 => vrf::assign(&mut pod, own, None)?,
        // Deleting the VRF releases its last interface.
        _ if !keep && members.len() <= usize::from(own.is_some()) => delete(&mut pod, &vrf)?,
        _ => {}
    }
    match (own, link_config) {
        (Some(own), Some(all)) => Ok(all.with_table(table, route::MAIN).restore(&mut pod, own.index)?),
        _ => Ok(()),
    }
}

fn delete(pod: &mut Host, vrf: &Link) -> Result<()> {
    match pod.route.request(link::delete(vrf)) {
        Err(error) if !error.is_gone() => Err(error.into()),
        _ => Ok(()),
    }
}

/// The recorded routes are in the VRF's table. In other tables they have no effect for the interface.
fn routes<'p>(
    req: &Request<'p>,
    pod: &mut Host,
    interface: &Link,
    recorded: &Attachment,
    table: u32,
) -> Result<Vec<Finding<'p>>> {
    let found = route::list(&mut pod.route)?;
    let in_table = |wanted: &route::Route| {
        found.iter().any(|one| (one.dst, one.prefix, one.table) == (wanted.dst, wanted.prefix, wanted.table))
    };
    let wanted =
        recorded.routes.iter().filter(|wanted| wanted.table.is_none_or(|table| table == route::MAIN));
    let wanted = wanted.map(|wanted| pod_interface::kernel_route(wanted, interface, recorded));
    let missing = wanted.map(|wanted| route::Route { table, ..wanted }).filter(|wanted| !in_table(wanted));
    Ok(missing
        .map(|wanted| {
            let text =
                format!("route to {}/{} is missing in table {table} of the VRF", wanted.dst, wanted.prefix);
            Finding::new(text).repaired_by(inspection::change(req, wanted.add()))
        })
        .collect())
}

fn recorded<'a>(req: &'a Request<'_>) -> Result<&'a Attachment> {
    req.chained_or("missing prevResult from earlier plugin")
}

fn interface(req: &Request<'_>, pod: &mut Host) -> Result<Link> {
    pod.get_link(&req.ifname).doing(|| format!("could not get link by name {}", req.ifname))
}

fn invalid<T>(text: String) -> Result<T> {
    Err(podwire_cni_spec::Error::invalid_config(text).into())
}
