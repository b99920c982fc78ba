//! podman up to 4.x: `containers.conf`, where its backend is CNI. From 5.0 on it has no CNI.

use std::fs;
use std::path::{Path, PathBuf};

use super::settings::{files, load, paths, table, text};
use super::{Layout, Runtime, Selection};
use crate::{Result, Root};

/// Podman's default plugin directories, in order.
const PLUGINS: [&str; 5] =
    ["/usr/local/libexec/cni", "/usr/libexec/cni", "/usr/local/lib/cni", "/usr/lib/cni", "/opt/cni/bin"];

/// `None` if podman uses netavark.
pub(super) fn layout(root: &Root) -> Result<Option<Layout>> {
    let mut layout = Layout {
        bin_dirs: PLUGINS.iter().map(PathBuf::from).collect(),
        selection: Selection::ByName,
        ..Layout::default_of(Runtime::Podman)
    };
    let mut backend = None;
    let fixed =
        ["/usr/share/containers/containers.conf", "/etc/containers/containers.conf"].map(PathBuf::from);
    let dropped = files(root, Path::new("/etc/containers/containers.conf.d"), ".conf");
    for file in fixed.into_iter().chain(dropped) {
        let Some(config) = load(root, &file)? else { continue };
        let Some(network) = table(&config, &["network"]) else { continue };
        if let Some(dirs) = paths(network, "cni_plugin_dirs") {
            layout.bin_dirs = dirs;
            layout.config = Some(file.clone());
        }
        if let Some(folder) = text(network, "network_config_dir") {
            layout.conf_dir = folder.into();
            layout.config = Some(file.clone());
        }
        backend = text(network, "network_backend").or(backend);
    }
    let backend = backend.or_else(|| stored_backend(root)).unwrap_or_else(|| default_backend(root));
    Ok((backend == "cni").then_some(layout))
}

/// What podman chose when it was first used.
fn stored_backend(root: &Root) -> Option<String> {
    let file = root.target(Path::new("/var/lib/containers/storage/defaultNetworkBackend"));
    fs::read_to_string(file).ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// What podman will choose: netavark where it is installed.
fn default_backend(root: &Root) -> String {
    let folders =
        ["/usr/libexec/podman", "/usr/lib/podman", "/usr/local/libexec/podman", "/usr/local/lib/podman"];
    let netavark = folders.iter().any(|folder| root.has(format!("{folder}/netavark")));
    if netavark { "netavark" } else { "cni" }.to_owned()
}
