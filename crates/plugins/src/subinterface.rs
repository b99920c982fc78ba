//! An interface in the pod that hangs on one of the node's, its master: the life that macvlan, ipvlan and vlan share, and
//! dummy, which hangs on nothing.
//!
//! The interface lives in the pod and dies with it, or with its master. The node keeps nothing but the lease.

mod mac;
mod master;
mod sight;

use podwire_cni_plugin::{delegate, Context, Error, Finding, Plugin, Request, Result};
use podwire_cni_spec::{Attachment, Dns, Interface, Version};
use podwire_kernel::child::{self, Child, Driver};
use podwire_kernel::{detached, sysctl, veth, Host, Link, Mac, Undo};
use serde::Deserialize;

use crate::{lease, plumbing};
pub use mac::hardware_address;
pub use master::Master;

/// A plugin whose pods have such an interface: all that tells one of them from the others.
#[derive(Debug)]
pub struct Kind {
    /// The plugin's type, and the driver's kind.
    pub name: &'static str,
    /// One line about it.
    pub about: &'static str,
    /// Reads the config.
    pub read: fn(&Request<'_>) -> Result<Subinterface>,
    /// Addresses that the pod has without an IPAM plugin.
    pub given: fn(&Request<'_>) -> Result<Attachment>,
}

/// For [`Kind::given`]: no addresses.
pub fn nothing(_: &Request<'_>) -> Result<Attachment> {
    Ok(Attachment::default())
}

impl Plugin for Kind {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn bypasses_policies(&self) -> bool {
        true
    }

    fn add(&self, req: &Request<'_>) -> Result<Attachment> {
        let wanted = (self.read)(req)?;
        wanted.attach(req, (self.given)(req)?)
    }

    /// Nothing of the config is needed but the IPAM plugin's part: the master may be gone, or not told any more.
    fn del(&self, req: &Request<'_>) -> Result<()> {
        let mut errors = Vec::new();
        // A DHCP server can be told over this interface only, so that goes last.
        errors.extend(lease::release(req).err());
        errors.extend(remove(req, self.name).err());
        Error::all(errors)
    }

    fn inspect<'p>(&self, req: &Request<'p>) -> Result<Vec<Finding<'p>>> {
        sight::inspect(req, &(self.read)(req)?)
    }

    /// The interfaces are gone with their pods.
    fn gc(&self, req: &Request<'_>) -> Result<()> {
        lease::collect(req)
    }

    fn status(&self, req: &Request<'_>) -> Result<()> {
        (self.read)(req)?.status(req)
    }
}

/// What a config asks for.
#[derive(Clone, Debug)]
pub struct Subinterface {
    /// What drives it.
    pub driver: Driver,
    /// What it hangs on.
    pub master: Master,
    /// Its MTU; 0 is the master's.
    pub mtu: u32,
    /// Its hardware address, if one was chosen.
    pub mac: Option<Mac>,
    /// Name servers for the result.
    pub dns: Dns,
}

impl Subinterface {
    /// ADD: the interface first, since an IPAM plugin may ask for an address over it (DHCP); then addresses, from the
    /// IPAM plugin or `given` already.
    fn attach<'a>(&self, req: &'a Request<'a>, given: Attachment) -> Result<Attachment> {
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
        result.dns = lease::choose_dns(&self.dns, std::mem::take(&mut result.dns));
        undo.keep();
        Ok(result)
    }

    fn create<'a>(&self, req: &'a Request<'a>, pod: &mut Host, undo: &mut Undo<'a>) -> Result<Link> {
        let mut node = Host::here()?;
        let master = self.master.find(&mut node, pod)?;
        self.check_mtu(master.as_ref())?;
        let (owner, kind) = (req.owner(), self.driver.kind());
        let wanted =
            Child { name: &req.ifname, owner: &owner, driver: self.driver, mtu: self.mtu, mac: self.mac };
        let made = wanted.create(self.master.place(master.as_ref()), &mut node, pod);
        let link = made.or_else(|error| match veth::name_taken(pod, &req.ifname, &error) {
            true => Err(taken(kind, &req.ifname)),
            false => Err(error).doing(|| format!("failed to create {kind}")),
        })?;
        undo.push(move || drop(remove(req, kind)));
        Ok(link)
    }

    fn check_mtu(&self, master: Option<&Link>) -> Result<()> {
        match master.filter(|master| self.mtu > master.mtu) {
            None => Ok(()),
            Some(master) => {
                let text = format!("mtu: invalid MTU {}, must be [0, master MTU({})]", self.mtu, master.mtu);
                let hint = format!("raise the MTU of {}, or leave `mtu` out", master.name);
                Err(podwire_cni_spec::Error::invalid_config(text).with_details(hint).into())
            }
        }
    }

    /// Others whom nobody here knows are on the master's wire: they are told of the new addresses, and asked whether they
    /// have one of them.
    fn configure(&self, pod: &mut Host, link: &Link, result: &Attachment) -> Result<()> {
        let shared = self.driver != Driver::Dummy;
        if shared && result.ips.iter().any(|ip| ip.address.addr().is_ipv6()) {
            let key = format!("net/ipv6/conf/{}/ndisc_notify", link.name);
            pod.run(|| sysctl::ensure_if_there(&key, "1"))??;
        }
        let announce = shared && !result.ips.is_empty();
        let options = plumbing::Options { detect_duplicates: shared, mac: None, announce };
        plumbing::configure(pod, link, result, options)
    }

    /// STATUS: the kernel has the driver, the master is there and can carry another, and there are addresses.
    fn status(&self, req: &Request<'_>) -> Result<()> {
        let mut node = Host::here()?;
        let kind = self.driver.kind();
        if !child::is_available(&mut node, kind)? {
            let text = format!("the running kernel has no driver {kind}");
            let error = podwire_cni_spec::Error::new(podwire_cni_spec::code::NOT_AVAILABLE, text);
            return Err(error.with_details("load the module, or use a kernel that has it").into());
        }
        // A VLAN cannot be up while its master is down; the others wait for it.
        let must_be_up = matches!(self.driver, Driver::Vlan(_));
        if let Some(master) = self.master.status(&mut node, must_be_up)? {
            self.check_mtu(Some(&master))?;
        }
        lease::status(req)
    }
}

/// Whether the config names an IPAM plugin. One that tries to and does not succeed is an error: the pod would be left
/// without addresses, and nobody would know why.
pub fn has_ipam(req: &Request<'_>) -> Result<bool> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Conf {
        ipam: Option<Section>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Section {
        r#type: String,
    }
    let conf: Conf = req.config()?;
    Ok(conf.ipam.is_some_and(|section| !section.r#type.is_empty()))
}

/// Deletes the pod's interface if it is this attachment's. An ADD that failed since the pod had an interface of that name
/// is followed by a DEL, which must not take that interface: another kind's, or one that is signed by another owner. (The
/// Go plugins sign nothing.)
fn remove(req: &Request<'_>, kind: &str) -> Result<()> {
    let Some(mut pod) = req.find_pod()? else { return Ok(()) };
    let owner = req.owner();
    // One without a signature may be a Go plugin's, which a GC by our ledger leaves alone; not so the one whose name
    // follows from the owner.
    let names = [(req.ifname.clone(), !req.signed_only), (child::temporary_name(&owner), true)];
    for (name, may_be_unsigned) in names {
        let is_own = |link: &Link| match link.alias.is_empty() {
            true => link.kind == kind && may_be_unsigned,
            false => link.kind == kind && owner.matches(&link.alias),
        };
        if let Some(link) = pod.find_link(&name)?.filter(is_own) {
            detached::delete_link(&mut pod, &link, None)?;
        }
    }
    Ok(())
}

fn taken(kind: &str, ifname: &str) -> Error {
    let text = format!("failed to create {kind}: the pod's interface {ifname} already exists");
    podwire_cni_spec::Error::internal(text)
        .with_details("the container is attached under that name: DEL it first")
        .into()
}

fn interface(req: &Request<'_>, link: &Link) -> Interface {
    // Older versions of the spec know no MTU in a result.
    let mtu = if req.version >= Version::V1_1_0 { link.mtu } else { 0 };
    let sandbox = req.netns.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    Interface { name: req.ifname.clone(), mac: link.mac_text(), mtu, sandbox, ..Interface::default() }
}
