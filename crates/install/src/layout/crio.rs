//! CRI-O: `crio.conf`, then the files of `crio.conf.d` by name.

use std::path::{Path, PathBuf};

use super::settings::{files, load, paths, table, text};
use super::{Layout, Runtime, Selection};
use crate::{Result, Root};

pub(super) const CONFIG: &str = "/etc/crio";

pub(super) fn layout(root: &Root) -> Result<Layout> {
    let folder = Path::new(CONFIG);
    let mut layout = Layout::default_of(Runtime::Crio);
    let all = std::iter::once(folder.join("crio.conf")).chain(files(root, &folder.join("crio.conf.d"), ""));
    for file in all.collect::<Vec<PathBuf>>() {
        let Some(config) = load(root, &file)? else { continue };
        let Some(network) = table(&config, &["crio", "network"]) else { continue };
        let dirs = paths(network, "plugin_dirs");
        let is_set = dirs.is_some()
            || network.contains_key("network_dir")
            || network.contains_key("cni_default_network");
        if let Some(dirs) = dirs {
            layout.bin_dirs = dirs;
        }
        if let Some(folder) = text(network, "network_dir") {
            layout.conf_dir = folder.into();
        }
        if let Some(name) = text(network, "cni_default_network") {
            layout.selection = Selection::Named(name);
        }
        if is_set {
            layout.config = Some(file);
        }
    }
    Ok(layout)
}
