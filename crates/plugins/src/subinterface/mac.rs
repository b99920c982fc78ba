//! The requested hardware address of a pod's interface.

use podwire_cni_plugin::{Request, Result};
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
    let text = match wanted.parse::<Mac>() {
        Ok(mac) if mac.is_usable() => return Ok(Some(mac)),
        Ok(mac) => format!("mac: {mac} is all zero or a group's address, an interface cannot have it"),
        Err(error) => format!("mac: {error}"),
    };
    Err(podwire_cni_spec::Error::invalid_config(text).into())
}
