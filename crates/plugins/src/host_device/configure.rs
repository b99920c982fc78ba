//! Configures the device in the pod.

use podwire_cni_plugin::{Context, Result};
use podwire_cni_spec::Attachment;
use podwire_kernel::{Host, Link, LinkConfig};

use super::inherited;
use crate::pod_interface;

/// Adds the addresses and routes of the lease first, then those that the device had on the node.
pub fn configure(pod: &mut Host, link: &Link, result: &mut Attachment, inherited: &LinkConfig) -> Result<()> {
    // Neighbours on the device's network may have cached another owner of an address.
    let options = pod_interface::Options { announce: true, ..pod_interface::Options::default() };
    if inherited.addresses.iter().any(|one| one.ip.is_ipv6()) {
        pod.run(|| pod_interface::enable_ipv6(&link.name, false))??;
    }
    pod_interface::configure(pod, link, result, options)?;
    inherited
        .restore(pod, link.index)
        .doing(|| format!("restore the addresses and routes that {} had on the node", link.name))?;
    inherited::add(result, inherited);
    Ok(())
}
