//! `podwire ipam upgrade`: the last step from host-local to blocks, as `calico-ipam -upgrade` does it: imports the addresses of
//! pods, then removes host-local's files. It does not lock the cluster.

use std::path::{Path, PathBuf};

use clap::Args;
use podwire_cni_runtime::ConfigFolder;
use podwire_plugins::host_local;

use super::migrate::{no_addresses, to_json, Source};
use crate::failure::Failure;
use crate::output::Output;

pub(super) const EXAMPLES: &str = "Examples:
  podwire ipam upgrade --store kubernetes                       the network k8s-pod-network
  podwire ipam upgrade pods --store http://10.0.0.1:2379 --node worker-7

First change the network config from host-local to calico-ipam: the command refuses to run while
host-local can still allocate addresses. It imports every address before it removes a file. If an
import fails, all files stay and the exit status is 1. The command is idempotent.";

const WHAT: &str = "cannot leave host-local";
const HOST_LOCAL: &str = "host-local";

#[derive(Debug, Args)]
pub(crate) struct Upgrade {
    #[command(flatten)]
    source: Source,
    /// Directory of network configs.
    #[arg(long, value_name = "DIR", default_value = "/etc/cni/net.d")]
    conf_dir: PathBuf,
}

impl Upgrade {
    pub(crate) fn run(&self) -> Result<Output, Failure> {
        self.refuse_if_still_used()?;
        let imports = self.source.import(WHAT, false)?;
        let mut text: String = imports.iter().map(|import| import.line(false)).collect();
        let mut json = to_json(&self.source.network, &imports, false);
        let success = imports.iter().all(|import| import.result.is_ok());
        if success {
            for import in &imports {
                let released = host_local::release(&import.reservation);
                released.map_err(|error| Failure::new(WHAT, error.to_cni()))?;
            }
            text += &if self.source.reservations().is_empty() && remove(&self.source.dir()) {
                format!("removed {}\n", self.source.dir().display())
            } else {
                no_addresses(&self.source)
            };
        } else {
            text += "kept all files of host-local\n";
        }
        json["success"] = success.into();
        Ok(Output { text, json, success })
    }

    /// host-local would allocate an address again once its file is removed.
    fn refuse_if_still_used(&self) -> Result<(), Failure> {
        let network = &self.source.network;
        let Ok(found) = ConfigFolder::new(&self.conf_dir).find(network) else { return Ok(()) };
        if !found.list.plugins.iter().any(|plugin| plugin.ipam.as_deref() == Some(HOST_LOCAL)) {
            return Ok(());
        }
        let why = format!("the network {network} still uses host-local: {}", found.path.display());
        let hint =
            "change its ipam to calico-ipam first; `podwire ipam migrate` imports addresses before that";
        Err(Failure::new(WHAT, podwire_cni_spec::Error::internal(why).with_details(hint)))
    }
}

/// Removes host-local's own files from a directory without addresses, and the directory if it is empty then. Returns
/// whether the directory is removed.
fn remove(dir: &Path) -> bool {
    let is_own = |name: &str| {
        name == "lock" || ["last_reserved_ip.", "podwire."].iter().any(|own| name.starts_with(own))
    };
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(is_own) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
    std::fs::remove_dir(dir).is_ok()
}
