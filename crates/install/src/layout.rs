//! Where a runtime looks for plugins and networks: what its own config says, or else what it assumes.

mod containerd;
mod crio;
mod podman;
mod rancher;
mod settings;
mod snap;

use std::path::PathBuf;

use crate::neighbours::{warnings, Neighbour};
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

/// Where a runtime looks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Who.
    pub runtime: Runtime,
    /// The file that says so; `None` if there is none.
    pub config: Option<PathBuf>,
    /// Folders of plugins; a plugin in an earlier one wins.
    pub bin_dirs: Vec<PathBuf>,
    /// The folder of networks.
    pub conf_dir: PathBuf,
    /// Which of its networks pods are attached to.
    pub reads: Reads,
    /// What people should know.
    pub notes: Vec<String>,
}

/// Which networks of a folder pods are attached to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reads {
    /// The first files, by name; as many as this.
    First(usize),
    /// The network with this name.
    Named(String),
    /// Those that a container is started with.
    ByName,
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

    /// Whether something of it is on the node.
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

    /// Where it looks. `None` if it uses no CNI plugins.
    pub fn layout(self, root: &Root) -> Result<Option<Layout>> {
        match self {
            Runtime::Containerd => containerd::layout(root).map(Some),
            Runtime::Crio => crio::layout(root).map(Some),
            Runtime::Podman => podman::layout(root),
            Runtime::K3s | Runtime::Rke2 => rancher::layout(root, self).map(Some),
            Runtime::Microk8s => snap::layout(root).map(Some),
        }
    }

    /// The version that all its releases understand. containerd 1.6 and 1.7 say that they are ready with a network of
    /// 1.1.0, and then attach no pod; podman's releases with CNI write 0.4.0 themselves.
    pub fn version(self) -> &'static str {
        match self {
            Runtime::Podman => "0.4.0",
            _ => "1.0.0",
        }
    }
}

impl Layout {
    /// What a runtime assumes that has no config.
    pub fn usual(runtime: Runtime) -> Layout {
        Layout {
            runtime,
            config: None,
            bin_dirs: vec![PLUGINS.into()],
            conf_dir: NETWORKS.into(),
            reads: Reads::First(1),
            notes: Vec::new(),
        }
    }

    /// What people should know when `file` with the network `name` is put among `others`.
    pub fn warnings(&self, file: &str, name: &str, others: &[Neighbour]) -> Vec<String> {
        let runtime = self.runtime.name();
        warnings(&self.reads, file, name, others)
            .into_iter()
            .map(|text| format!("{runtime}: {text}"))
            .collect()
    }
}

#[cfg(test)]
mod tests;
