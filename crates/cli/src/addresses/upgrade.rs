//! `podwire ipam upgrade`: the last step from host-local to blocks, as Calico's `calico-ipam -upgrade` does it: what pods have is entered, and
//! then host-local's files go. The cluster is not locked for it.

use std::path::{Path, PathBuf};

use clap::Args;
use podwire_cni_runtime::ConfigFolder;
use podwire_plugins::host_local;

use super::migrate::{nothing, told, Source};
use crate::{Answer, Failure};

pub(super) const EXAMPLES: &str = "Examples:
  podwire ipam upgrade --store kubernetes                       the network k8s-pod-network
  podwire ipam upgrade pods --store http://10.0.0.1:2379 --node worker-7

First change the network's config from host-local to calico-ipam: while host-local may still give addresses, nothing is done. Every address
is entered before any file goes; if one cannot be, all files stay, and the exit status is 1. It may be done again.";

const WHAT: &str = "cannot leave host-local";
const HOST_LOCAL: &str = "host-local";

#[derive(Debug, Args)]
pub(crate) struct Upgrade {
    #[command(flatten)]
    source: Source,
    /// Where networks are configured.
    #[arg(long, value_name = "DIR", default_value = "/etc/cni/net.d")]
    conf_dir: PathBuf,
}

impl Upgrade {
    pub(crate) fn run(&self) -> Result<Answer, Failure> {
        self.refuse_if_still_used()?;
        let moved = self.source.enter(WHAT, false)?;
        let mut text: String = moved.iter().map(|moved| moved.line(false)).collect();
        let mut json = told(&self.source.network, &moved, false);
        let success = moved.iter().all(|moved| moved.became.is_ok());
        if success {
            for moved in &moved {
                let given_back = host_local::release(&moved.reservation);
                given_back.map_err(|error| Failure::new(WHAT, error.to_cni()))?;
            }
            text += &match self.source.reservations().is_empty() && remove(&self.source.folder()) {
                true => format!("removed {}\n", self.source.folder().display()),
                false => nothing(&self.source),
            };
        } else {
            text += "all files of host-local stay\n";
        }
        json["success"] = success.into();
        Ok(Answer { text, json, success })
    }

    /// An address whose file is gone is free to host-local.
    fn refuse_if_still_used(&self) -> Result<(), Failure> {
        let network = &self.source.network;
        let Ok(found) = ConfigFolder::new(&self.conf_dir).find(network) else { return Ok(()) };
        match found.list.plugins.iter().any(|plugin| plugin.ipam.as_deref() == Some(HOST_LOCAL)) {
            false => Ok(()),
            true => {
                let why =
                    format!("{} still gives addresses of {network} by host-local", found.path.display());
                let hint =
                    "change its ipam to calico-ipam first; podwire ipam migrate enters addresses before that";
                Err(Failure::new(WHAT, podwire_cni_spec::Error::internal(why).with_details(hint)))
            }
        }
    }
}

/// Removes a folder without addresses: what is host-local's own, and the folder if nothing else is in it. Whether it is gone now.
fn remove(folder: &Path) -> bool {
    let is_its = |name: &str| {
        name == "lock" || ["last_reserved_ip.", "podwire."].iter().any(|own| name.starts_with(own))
    };
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(is_its) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
    std::fs::remove_dir(folder).is_ok()
}
