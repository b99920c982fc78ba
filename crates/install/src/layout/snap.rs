//! MicroK8s: a snap that bundles containerd, below the snap's data directory.

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
        ..Layout::default_of(Runtime::Microk8s)
    };
    let layout = read(root, &data.join("args/containerd.toml"), usual)?;
    // The template contains a variable of the snap.
    let expanded = |path: PathBuf| PathBuf::from(path.to_string_lossy().replace("${SNAP_DATA}", DATA));
    Ok(Layout {
        bin_dirs: layout.bin_dirs.into_iter().map(expanded).collect(),
        conf_dir: expanded(layout.conf_dir),
        ..layout
    })
}
