//! An interface in the pod on top of another interface, its master: the common part of macvlan, ipvlan and vlan, and of
//! dummy, which has no master.
//!
//! The kernel deletes the interface with the pod's namespace or with its master. The node keeps nothing but the lease.

mod check;
mod interface;
mod mac;
mod master;

use podwire_cni_plugin::{Error, Finding, Keys, Plugin, Request, Result};
use podwire_cni_spec::Attachment;
use serde::Deserialize;

use crate::lease;
pub use interface::Subinterface;
pub use mac::{hardware_address, invalid_mac};
pub use master::Master;

/// A plugin with such an interface: the parts that differ between the plugins.
#[derive(Debug)]
pub struct Kind {
    /// The plugin's type, and the driver's kind.
    pub name: &'static str,
    /// One line about the plugin.
    pub about: &'static str,
    /// The keys of the config.
    pub keys: Keys,
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

    fn keys(&self) -> Option<Keys> {
        Some(self.keys)
    }

    fn bypasses_host_firewall(&self) -> bool {
        true
    }

    fn add(&self, req: &Request<'_>) -> Result<Attachment> {
        let wanted = (self.read)(req)?;
        wanted.attach(req, (self.given)(req)?)
    }

    /// Needs only the IPAM section of the config: the master may be gone, or no longer in the config.
    fn del(&self, req: &Request<'_>) -> Result<()> {
        let mut errors = Vec::new();
        // The lease first: a DHCPRELEASE is sent through this interface.
        errors.extend(lease::release(req).err());
        errors.extend(interface::remove(req, self.name).err());
        Error::all(errors)
    }

    fn inspect<'p>(&self, req: &Request<'p>) -> Result<Vec<Finding<'p>>> {
        check::inspect(req, &(self.read)(req)?)
    }

    /// The kernel deletes the interfaces with their pods.
    fn gc(&self, req: &Request<'_>) -> Result<()> {
        lease::collect(req)
    }

    fn status(&self, req: &Request<'_>) -> Result<()> {
        (self.read)(req)?.status(req)
    }
}

/// Whether the config names an IPAM plugin. An invalid `ipam` section is an error: otherwise the pod would silently
/// have no addresses.
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
