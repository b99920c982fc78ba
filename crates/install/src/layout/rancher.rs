//! k3s and rke2: they bundle containerd and write its config at each start.

use std::fs;
use std::path::{Path, PathBuf};

use super::containerd::read;
use super::{Layout, Runtime};
use crate::{Result, Root};

/// The agent directory of `name`, in the data directory, which its config may move.
pub(super) fn agent(root: &Root, name: &str) -> PathBuf {
    data(root, name).join("agent")
}

fn data(root: &Root, name: &str) -> PathBuf {
    let config = root.target(Path::new(&format!("/etc/rancher/{name}/config.yaml")));
    let text = fs::read_to_string(config).unwrap_or_default();
    let set = text.lines().find_map(|line| line.strip_prefix("data-dir:"));
    let set =
        set.map(|value| value.trim().trim_matches(['"', '\'']).to_owned()).filter(|value| !value.is_empty());
    set.unwrap_or_else(|| format!("/var/lib/rancher/{name}")).into()
}

pub(super) fn layout(root: &Root, runtime: Runtime) -> Result<Layout> {
    let (name, data) = (runtime.name(), data(root, runtime.name()));
    let config = data.join("agent/etc/containerd/config.toml");
    let mut layout = read(root, &config, Layout::default_of(runtime))?;
    if layout.config.is_none() {
        layout.notes.push(format!(
            "{name}: {} does not exist yet: start {name} once, then it names the plugin directory",
            config.display()
        ));
        // With its bundled flannel, k3s has its own directories; rke2 has the default ones.
        if runtime == Runtime::K3s {
            layout.conf_dir = data.join("agent/etc/cni/net.d");
            let own = [data.join("data/cni"), data.join("data/current/bin")];
            layout.bin_dirs = vec![own.iter().find(|folder| root.has(folder)).unwrap_or(&own[0]).clone()];
        }
    }
    // k3s unpacks each version into its own directory.
    let folder = |path: &PathBuf| path.starts_with(data.join("data")) && path.ends_with("bin");
    if let Some(path) = layout.bin_dirs.first().filter(|path| folder(path)) {
        layout.notes.push(format!(
            "{name}: {} belongs to one version of {name}: install again after an upgrade",
            path.display()
        ));
    }
    Ok(layout)
}
