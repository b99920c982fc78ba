//! k3s and rke2: they bring their containerd, and write its config each time that they start.

use std::fs;
use std::path::{Path, PathBuf};

use super::containerd::read;
use super::{Layout, Runtime};
use crate::{Result, Root};

/// The agent's folder of `name`: in the data folder, which its config may place elsewhere.
pub(super) fn agent(root: &Root, name: &str) -> PathBuf {
    data(root, name).join("agent")
}

fn data(root: &Root, name: &str) -> PathBuf {
    let config = root.target(Path::new(&format!("/etc/rancher/{name}/config.yaml")));
    let text = fs::read_to_string(config).unwrap_or_default();
    let said = text.lines().find_map(|line| line.strip_prefix("data-dir:"));
    let said =
        said.map(|value| value.trim().trim_matches(['"', '\'']).to_owned()).filter(|value| !value.is_empty());
    said.unwrap_or_else(|| format!("/var/lib/rancher/{name}")).into()
}

pub(super) fn layout(root: &Root, runtime: Runtime) -> Result<Layout> {
    let (name, data) = (runtime.name(), data(root, runtime.name()));
    let config = data.join("agent/etc/containerd/config.toml");
    let mut layout = read(root, &config, Layout::usual(runtime))?;
    if layout.config.is_none() {
        layout.notes.push(format!(
            "{name}: {} is not there yet: start {name} once, then it says where its plugins are",
            config.display()
        ));
        // With its own flannel, k3s has folders of its own; rke2 has the usual ones.
        if runtime == Runtime::K3s {
            layout.conf_dir = data.join("agent/etc/cni/net.d");
            let own = [data.join("data/cni"), data.join("data/current/bin")];
            layout.bin_dirs = vec![own.iter().find(|folder| root.has(folder)).unwrap_or(&own[0]).clone()];
        }
    }
    // k3s unpacks each of its versions into a folder of its own.
    let folder = |path: &PathBuf| path.starts_with(data.join("data")) && path.ends_with("bin");
    if let Some(path) = layout.bin_dirs.first().filter(|path| folder(path)) {
        layout.notes.push(format!(
            "{name}: {} belongs to one version of {name}: install again after an upgrade",
            path.display()
        ));
    }
    Ok(layout)
}
