//! The interface itself: create it, configure it, delete it.

use podwire_cni_plugin::{delegate, Context, Error, Request, Result};
use podwire_cni_spec::{Attachment, Dns, Interface, Version};
use podwire_kernel::child::{self, Child, Driver};
use podwire_kernel::{detached, sysctl, veth, Host, Link, Mac, Undo};

use super::master::Master;
use crate::{lease, pod_interface, veth_pair};

/// The desired interface.
#[derive(Clone, Debug)]
pub struct Subinterface {
    /// The driver and its settings.
    pub driver: Driver,
    /// The interface below it.
    pub master: Master,
    /// Its MTU as the config has it; 0 is the master's.
    pub mtu: i64,
    /// Its hardware address, if the config or the runtime sets one.
    pub mac: Option<Mac>,
    /// Name servers for the result.
    pub dns: Dns,
}

impl Subinterface {
    /// ADD: creates the interface first, because an IPAM plugin may send through it (DHCP). Then come the addresses, of
    /// the IPAM plugin or `given`.
    pub(super) fn attach<'a>(&self, req: &'a Request<'a>, given: Attachment) -> Result<Attachment> {
        let mut undo = Undo::new();
        let mut pod = req.pod()?;
        let link = self.create(req, &mut pod, &mut undo)?;
        let mut result = match delegate::ipam(req) {
            Some(_) => lease::obtain(req, &mut undo)?,
            None => given,
        };
        result.interfaces = vec![interface(req, &link)];
        result.ips.iter_mut().for_each(|ip| ip.interface = Some(0));
        self.configure(&mut pod, &link, &result)?;
        result.dns = lease::choose_dns(req, &self.dns, std::mem::take(&mut result.dns));
        undo.keep();
        Ok(result)
    }

    /// Creates the interface in the pod. `undo` deletes it.
    pub(super) fn create<'a>(
        &self,
        req: &'a Request<'a>,
        pod: &mut Host,
        undo: &mut Undo<'a>,
    ) -> Result<Link> {
        let mut node = Host::here()?;
        let master = self.master.find(self.driver.kind(), &mut node, pod)?;
        let mtu = self.check_mtu(master.as_ref())?;
        let (owner, kind) = (req.owner(), self.driver.kind());
        let wanted = Child { name: &req.ifname, owner: &owner, driver: self.driver, mtu, mac: self.mac };
        let created = wanted.create(self.master.in_kernel(master.as_ref()), &mut node, pod);
        let link = created.or_else(|error| {
            if veth::name_taken(pod, &req.ifname, &error) {
                return Err(name_taken(kind, &req.ifname));
            }
            Err(error).doing(|| format!("failed to create {kind}"))
        })?;
        undo.push(move || drop(remove(req, kind)));
        Ok(link)
    }

    fn check_mtu(&self, master: Option<&Link>) -> Result<u32> {
        let largest = master.map_or(u32::MAX, |master| master.mtu);
        match (u32::try_from(self.mtu), master) {
            (Ok(mtu), _) if mtu <= largest => veth_pair::check_mtu(mtu).map(|()| mtu),
            (_, Some(master)) => {
                let text = format!("invalid MTU {}, must be [0, master MTU({largest})]", self.mtu);
                let hint = format!("mtu: raise the MTU of {}, or remove the key", master.name);
                Err(podwire_cni_spec::Error::invalid_config(text).with_hint(hint).into())
            }
            (_, None) => Err(veth_pair::impossible_mtu(self.mtu)),
        }
    }

    /// Configures the interface. Unknown hosts share the master's network: the addresses are announced to them, and
    /// duplicate address detection runs.
    pub(super) fn configure(&self, pod: &mut Host, link: &Link, result: &Attachment) -> Result<()> {
        let is_shared = self.driver != Driver::Dummy;
        if is_shared && result.ips.iter().any(|ip| ip.address.addr().is_ipv6()) {
            let key = format!("net/ipv6/conf/{}/ndisc_notify", link.name);
            pod.run(|| sysctl::ensure_if_there(&key, "1"))??;
        }
        let announce = is_shared && !result.ips.is_empty();
        let options = pod_interface::Options { detect_duplicates: is_shared, mac: None, announce };
        pod_interface::configure(pod, link, result, options)
    }

    /// STATUS: the kernel has the driver, the master exists and allows the MTU, and the IPAM plugin is ready.
    pub(super) fn status(&self, req: &Request<'_>) -> Result<()> {
        let mut node = Host::here()?;
        let kind = self.driver.kind();
        if !child::is_available(&mut node, kind)? {
            let text = format!("the running kernel has no driver {kind}");
            let error = podwire_cni_spec::Error::new(podwire_cni_spec::code::NOT_AVAILABLE, text);
            return Err(error.with_details("load the module, or use a kernel that has it").into());
        }
        // A VLAN cannot be brought up while its master is down; the other kinds can.
        let must_be_up = matches!(self.driver, Driver::Vlan(_));
        let master = self.master.status(&mut node, must_be_up)?;
        self.check_mtu(master.as_ref())?;
        lease::status(req)
    }
}

/// Deletes the pod's interface if it belongs to this attachment. A runtime follows a failed ADD with DEL. If the ADD
/// failed because the pod had an interface of that name, this DEL must not delete it: it is of another kind, or its
/// alias names another owner. Go plugins set no alias.
pub(super) fn remove(req: &Request<'_>, kind: &str) -> Result<()> {
    let Some(mut pod) = req.find_pod()? else { return Ok(()) };
    let owner = req.owner();
    // An interface without an alias may be a Go plugin's, which GC by the ledger keeps. One with the name that is
    // derived from the owner is Podwire's.
    let names = [(req.ifname.clone(), !req.signed_only), (child::temporary_name(&owner), true)];
    for (name, may_lack_alias) in names {
        let is_own = |link: &Link| {
            let is_owned = if link.alias.is_empty() { may_lack_alias } else { owner.matches(&link.alias) };
            link.kind == kind && is_owned
        };
        if let Some(link) = pod.find_link(&name)?.filter(is_own) {
            detached::delete_link(&mut pod, &link, None)?;
        }
    }
    Ok(())
}

fn name_taken(kind: &str, ifname: &str) -> Error {
    let text = format!("failed to create {kind}: the pod's interface {ifname} already exists");
    podwire_cni_spec::Error::internal(text)
        .with_details("the container is already attached under that name: run DEL first")
        .into()
}

fn interface(req: &Request<'_>, link: &Link) -> Interface {
    // Results before 1.1.0 have no MTU.
    let mtu = if req.version >= Version::V1_1_0 { link.mtu } else { 0 };
    let sandbox = req.netns.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    Interface { name: req.ifname.clone(), mac: link.mac_text(), mtu, sandbox, ..Interface::default() }
}
