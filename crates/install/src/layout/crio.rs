//! CRI-O: `crio.conf`, and what lies in `crio.conf.d`, in the order of names.

use std::path::{Path, PathBuf};

use super::settings::{files, load, paths, table, text};
use super::{Layout, Reads, Runtime};
use crate::{Result, Root};

pub(super) const CONFIG: &str = "/etc/crio";

pub(super) fn layout(root: &Root) -> Result<Layout> {
    let folder = Path::new(CONFIG);
    let mut layout = Layout::usual(Runtime::Crio);
    let all = std::iter::once(folder.join("crio.conf")).chain(files(root, &folder.join("crio.conf.d"), ""));
    for file in all.collect::<Vec<PathBuf>>() {
        let Some(config) = load(root, &file)? else { continue };
        let Some(network) = table(&config, &["crio", "network"]) else { continue };
        let dirs = paths(network, "plugin_dirs");
        let said = dirs.is_some()
            || network.contains_key("network_dir")
            || network.contains_key("cni_default_network");
        if let Some(dirs) = dirs {
            layout.bin_dirs = dirs;
        }
        if let Some(folder) = text(network, "network_dir") {
            layout.conf_dir = folder.into();
        }
        if let Some(name) = text(network, "cni_default_network") {
            layout.reads = Reads::Named(name);
        }
        if said {
            layout.config = Some(file);
        }
    }
    Ok(layout)
}
