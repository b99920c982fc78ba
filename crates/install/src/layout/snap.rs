//! MicroK8s: a snap with its own containerd, all below the snap's data.

use std::path::{Path, PathBuf};

use super::containerd::read;
use super::{Layout, Runtime};
use crate::{Result, Root};

pub(super) const DATA: &str = "/var/snap/microk8s/current";

pub(super) fn layout(root: &Root) -> Result<Layout> {
    let data = Path::new(DATA);
    let usual = Layout {
        bin_dirs: vec![data.join("opt/cni/bin")],
        conf_dir: data.join("args/cni-network"),
        ..Layout::usual(Runtime::Microk8s)
    };
    let layout = read(root, &data.join("args/containerd.toml"), usual)?;
    // The snap's template has variables of the snap.
    let filled = |path: PathBuf| PathBuf::from(path.to_string_lossy().replace("${SNAP_DATA}", DATA));
    Ok(Layout {
        bin_dirs: layout.bin_dirs.into_iter().map(filled).collect(),
        conf_dir: filled(layout.conf_dir),
        ..layout
    })
}
