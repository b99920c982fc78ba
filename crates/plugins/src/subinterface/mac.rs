//! The requested hardware address of a pod's interface.

use podwire_cni_plugin::{Error, Request, Result};
use podwire_cni_spec::capability;
use podwire_kernel::Mac;

/// The requested hardware address: from the runtime, from `CNI_ARGS`, or from the config, in this order.
pub fn hardware_address(req: &Request<'_>, configured: &str) -> Result<Option<Mac>> {
    let by_runtime = capability::mac(&req.config)?;
    let by_args = req.args.get("MAC").map(str::to_string).filter(|mac| !mac.is_empty());
    let wanted = by_runtime.or(by_args).unwrap_or_else(|| configured.to_string());
    if wanted.is_empty() {
        return Ok(None);
    }
    match wanted.parse::<Mac>() {
        Ok(mac) if mac.is_usable() => Ok(Some(mac)),
        Ok(mac) => {
            let text = format!("mac: {mac} is all zero or a group's address, an interface cannot have it");
            Err(podwire_cni_spec::Error::invalid_config(text).into())
        }
        Err(error) => Err(invalid_mac(&wanted, &error)),
    }
}

/// The Go plugins' text for a hardware address that cannot be parsed.
pub fn invalid_mac(mac: &str, why: &podwire_kernel::Error) -> Error {
    let text = format!("invalid args {mac} for MAC addr: address {mac}: invalid MAC address");
    podwire_cni_spec::Error::invalid_config(text).with_hint(format!("mac: {why}")).into()
}
