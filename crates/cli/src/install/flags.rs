//! The flags of `podwire install`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use ipnet::IpNet;
use podwire_install::network::NetworkKind;
use podwire_install::Runtime;

#[derive(Debug, Args)]
pub(crate) struct Install {
    /// Remove what was installed.
    #[arg(long, conflicts_with_all = ["network", "conflist", "replace", "runtime", "bin_dir", "conf_dir", "from"])]
    pub(super) uninstall: bool,
    /// Only show what would be done.
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Replace other plugins with the same names; --uninstall restores them.
    #[arg(long)]
    pub(super) replace: bool,
    #[command(flatten)]
    pub(super) directories: DirectoryFlags,
    #[command(flatten)]
    pub(super) network: NetworkFlags,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Directories")]
pub(super) struct DirectoryFlags {
    /// Runtime to install for; repeatable [default: all that are found].
    #[arg(long, value_name = "NAME", value_enum)]
    pub(super) runtime: Vec<RuntimeName>,
    /// Directory of plugins [default: of the runtime].
    #[arg(long, value_name = "DIR")]
    pub(super) bin_dir: Option<PathBuf>,
    /// Directory of network configs [default: of the runtime].
    #[arg(long, value_name = "DIR")]
    pub(super) conf_dir: Option<PathBuf>,
    /// Root of the node, for an image or a chroot; other directories are relative to it.
    #[arg(long, value_name = "DIR", default_value = "/", hide_default_value = true)]
    pub(super) root: PathBuf,
    /// Directory of podwire-cni [default: of this program].
    #[arg(long, value_name = "DIR")]
    pub(super) from: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Network")]
pub(super) struct NetworkFlags {
    /// Kind of the network [default: bridge, if the directory has no network].
    #[arg(long, value_name = "KIND", value_enum, conflicts_with_all = ["conflist", "no_conflist"])]
    pub(super) network: Option<NetworkKindName>,
    /// Pod subnet; repeatable, once per address family [default: 10.66.0.0/16].
    #[arg(long, value_name = "CIDR", conflicts_with_all = ["conflist", "no_conflist"])]
    pub(super) subnet: Vec<IpNet>,
    /// Interface of the node for macvlan.
    #[arg(long, value_name = "IFNAME", requires = "network")]
    pub(super) master: Option<String>,
    /// Name of the network.
    #[arg(long, value_name = "NAME", default_value = "podwire", conflicts_with_all = ["conflist", "no_conflist"])]
    pub(super) name: String,
    /// CNI version of the network [default: one that all releases of the runtime support].
    #[arg(long, value_name = "VERSION", conflicts_with_all = ["conflist", "no_conflist"])]
    pub(super) cni_version: Option<String>,
    /// Install this conflist unchanged.
    #[arg(long, value_name = "FILE", conflicts_with = "no_conflist")]
    pub(super) conflist: Option<PathBuf>,
    /// File name of the conflist; runtimes read the first by name [default: 10-podwire.conflist].
    #[arg(long, value_name = "NAME", conflicts_with = "no_conflist")]
    pub(super) conf_name: Option<String>,
    /// Install plugins only.
    #[arg(long)]
    pub(super) no_conflist: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum RuntimeName {
    Containerd,
    Crio,
    Podman,
    K3s,
    Rke2,
    Microk8s,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum NetworkKindName {
    /// Pods on a bridge, with masquerading.
    Bridge,
    /// A routed veth pair per pod, with masquerading.
    Ptp,
    /// Pods on the L2 segment of an interface of the node (--master).
    Macvlan,
    /// The subnet of a flannel daemon.
    Flannel,
}

impl From<RuntimeName> for Runtime {
    fn from(name: RuntimeName) -> Runtime {
        match name {
            RuntimeName::Containerd => Runtime::Containerd,
            RuntimeName::Crio => Runtime::Crio,
            RuntimeName::Podman => Runtime::Podman,
            RuntimeName::K3s => Runtime::K3s,
            RuntimeName::Rke2 => Runtime::Rke2,
            RuntimeName::Microk8s => Runtime::Microk8s,
        }
    }
}

impl From<NetworkKindName> for NetworkKind {
    fn from(name: NetworkKindName) -> NetworkKind {
        match name {
            NetworkKindName::Bridge => NetworkKind::Bridge,
            NetworkKindName::Ptp => NetworkKind::Ptp,
            NetworkKindName::Macvlan => NetworkKind::Macvlan,
            NetworkKindName::Flannel => NetworkKind::Flannel,
        }
    }
}
