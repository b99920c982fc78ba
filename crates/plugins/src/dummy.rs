//! dummy: an interface that leads nowhere, to hold addresses that a pod is to have.

use cni::{Attachment, Dns};
use cni_plugin::{Finding, Plugin, Request, Result};
use kernel::child::Driver;
use serde::Deserialize;

use crate::cable;
use crate::subinterface::{self, Master, Subinterface};

/// The plugin.
#[derive(Debug)]
pub struct Dummy;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Conf {
    mtu: u32,
    mac: String,
    dns: Dns,
}

impl Plugin for Dummy {
    fn name(&self) -> &'static str {
        "dummy"
    }

    fn about(&self) -> &'static str {
        "dummy: gives a pod an interface that leads nowhere, for its addresses"
    }

    fn add(&self, req: &Request<'_>) -> Result<Attachment> {
        read(req)?.attach(req, Attachment::default())
    }

    fn del(&self, req: &Request<'_>) -> Result<()> {
        subinterface::detach(req, self.name())
    }

    fn inspect<'p>(&self, req: &Request<'p>) -> Result<Vec<Finding<'p>>> {
        read(req)?.inspect(req)
    }

    fn gc(&self, req: &Request<'_>) -> Result<()> {
        subinterface::collect(req)
    }

    fn status(&self, req: &Request<'_>) -> Result<()> {
        read(req)?.status(req)
    }
}

/// An interface that leads nowhere is there for its addresses.
fn read(req: &Request<'_>) -> Result<Subinterface> {
    let conf: Conf = req.config()?;
    if !subinterface::has_ipam(req)? {
        let text = "dummy interface requires an IPAM configuration: ipam.type";
        return Err(cni::Error::invalid_config(text).into());
    }
    cable::check_mtu(conf.mtu)?;
    Ok(Subinterface {
        driver: Driver::Dummy,
        master: Master::Nothing,
        mtu: conf.mtu,
        mac: subinterface::hardware_address(req, &conf.mac)?,
        dns: conf.dns,
    })
}
