//! Repairs: functions that run only if the caller asks for repair. An object that already exists is not an error.

use podwire_cni_plugin::{Context, Request, Result};
use podwire_kernel::{detached, Host};
use podwire_netlink::Message;

/// A repair that sends `message` in the pod's namespace.
pub fn change<'p>(req: &Request<'p>, message: Message) -> impl FnOnce() -> Result<()> + 'p {
    let req = req.clone();
    move || match req.pod()?.route.request(message) {
        Err(error) if error.is_exists() => Ok(()),
        other => other.doing(|| "repair the pod".into()),
    }
}

/// A repair that sends `message` on the node.
pub fn change_node<'p>(message: Message) -> impl FnOnce() -> Result<()> + 'p {
    move || match Host::here()?.route.request(message) {
        Err(error) if error.is_exists() => Ok(()),
        other => other.doing(|| "repair the node".into()),
    }
}

/// A repair that runs `work` on the node.
pub fn on_node<'p>(work: impl FnOnce(&mut Host) -> Result<()> + 'p) -> impl FnOnce() -> Result<()> + 'p {
    move || {
        let mut node = Host::here()?;
        let outcome = work(&mut node);
        detached::after_adding(&node);
        outcome
    }
}
