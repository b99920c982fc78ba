//! The config of the ptp plugin.

use podwire_cni_plugin::{Request, Result};
use podwire_cni_spec::Dns;
use serde::Deserialize;

use crate::{masquerade, veth_pair};

/// The keys of the config.
pub(super) const CONFIG_KEYS: &[&str] = &["ipMasq", "ipMasqBackend", "mtu"];

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Conf {
    pub(super) ip_masq: bool,
    ip_masq_backend: Option<String>,
    pub(super) mtu: u32,
    pub(super) dns: Dns,
}

impl Conf {
    /// Reads and checks the config.
    pub(super) fn read(req: &Request<'_>) -> Result<Conf> {
        let conf: Conf = req.config()?;
        masquerade::check_backend(&conf.ip_masq_backend)?;
        veth_pair::check_mtu(conf.mtu)?;
        Ok(conf)
    }
}
