//! The plugin and network directories of a runtime, from its config or its defaults.

mod containerd;
mod crio;
mod podman;
mod rancher;
mod settings;
mod snap;

use std::path::PathBuf;

use crate::config_dir::{warnings, ConfigFile, Selection};
use crate::{Result, Root};

const PLUGINS: &str = "/opt/cni/bin";
const NETWORKS: &str = "/etc/cni/net.d";

/// A container runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Runtime {
    Containerd,
    Crio,
    Podman,
    K3s,
    Rke2,
    Microk8s,
}

/// The directories of a runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The runtime.
    pub runtime: Runtime,
    /// The config file; `None` if there is none.
    pub config: Option<PathBuf>,
    /// Plugin directories; a plugin in an earlier one wins.
    pub bin_dirs: Vec<PathBuf>,
    /// The directory of network configs.
    pub conf_dir: PathBuf,
    /// Which of its networks pods are attached to.
    pub selection: Selection,
    /// Notes for the user.
    pub notes: Vec<String>,
}

impl Runtime {
    /// All of them.
    pub const ALL: [Runtime; 6] =
        [Runtime::Containerd, Runtime::Crio, Runtime::Podman, Runtime::K3s, Runtime::Rke2, Runtime::Microk8s];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Runtime::Containerd => "containerd",
            Runtime::Crio => "crio",
            Runtime::Podman => "podman",
            Runtime::K3s => "k3s",
            Runtime::Rke2 => "rke2",
            Runtime::Microk8s => "microk8s",
        }
    }

    /// Whether it is installed on the node.
    pub fn is_on(self, root: &Root) -> bool {
        let program = |name: &str| {
            ["/usr/bin", "/usr/local/bin", "/usr/sbin", "/bin"]
                .iter()
                .any(|folder| root.has(format!("{folder}/{name}")))
        };
        match self {
            Runtime::Containerd => program("containerd") || root.has(containerd::CONFIG),
            Runtime::Crio => program("crio") || root.has(crio::CONFIG),
            Runtime::Podman => program("podman"),
            Runtime::K3s => program("k3s") || root.has(rancher::agent(root, "k3s")),
            Runtime::Rke2 => program("rke2") || root.has(rancher::agent(root, "rke2")),
            Runtime::Microk8s => root.has(snap::DATA),
        }
    }

    /// Its directories; `None` if it uses no CNI plugins.
    pub fn layout(self, root: &Root) -> Result<Option<Layout>> {
        match self {
            Runtime::Containerd => containerd::layout(root).map(Some),
            Runtime::Crio => crio::layout(root).map(Some),
            Runtime::Podman => podman::layout(root),
            Runtime::K3s | Runtime::Rke2 => rancher::layout(root, self).map(Some),
            Runtime::Microk8s => snap::layout(root).map(Some),
        }
    }

    /// The CNI version that all its releases support. containerd 1.6 and 1.7 report ready with a network of version 1.1.0 and
    /// then fail to attach pods; podman's releases with CNI write 0.4.0 themselves.
    pub fn version(self) -> &'static str {
        match self {
            Runtime::Podman => "0.4.0",
            _ => "1.0.0",
        }
    }
}

impl Layout {
    /// The default directories.
    pub fn default_of(runtime: Runtime) -> Layout {
        Layout {
            runtime,
            config: None,
            bin_dirs: vec![PLUGINS.into()],
            conf_dir: NETWORKS.into(),
            selection: Selection::First(1),
            notes: Vec::new(),
        }
    }

    /// Warnings about installing `file` with the network `name` among `others`.
    pub fn warnings(&self, file: &str, name: &str, others: &[ConfigFile]) -> Vec<String> {
        let runtime = self.runtime.name();
        warnings(&self.selection, file, name, others)
            .into_iter()
            .map(|text| format!("{runtime}: {text}"))
            .collect()
    }
}

#[cfg(test)]
mod tests;
