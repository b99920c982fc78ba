//! `podwire install`: plugins and a network where this node's runtimes look for them, and back.

mod report;
mod wish;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use ipnet::IpNet;
use podwire_install::network::NetworkKind;
use podwire_install::{apply, InstallLock, InstallPlan, NodeState, Root, Runtime};

use crate::{Answer, Failure};
use report::Report;
use wish::Wish;

pub(crate) const EXAMPLES: &str = "Examples:
  podwire install --dry-run                       what would be put where, and what would be left alone
  podwire install                                 plugins; and a network, if the node has none
  podwire install --replace                       in the place of other plugins, which are kept for --uninstall
  podwire install --network ptp --subnet 10.9.0.0/24 --subnet fd09::/64
  podwire install --conflist my.conflist --conf-name 05-mine.conflist
  podwire install --root /mnt/image --runtime containerd --no-conflist
  podwire install --uninstall                     takes back exactly what was put, and brings back what was replaced

Where a runtime looks is read from its own config: containerd's config.toml with its imports, crio.conf, containers.conf, what
k3s, rke2 and MicroK8s write for their containerd. What was put is written down in /var/lib/podwire/install. A file that
somebody has changed since is left as it is. Killed at any moment, it can be run again.";

#[derive(Debug, Args)]
pub(crate) struct Install {
    /// Take back what was installed.
    #[arg(long, conflicts_with_all = ["network", "conflist", "replace", "runtime", "bin_dir", "conf_dir", "from"])]
    uninstall: bool,
    /// Only show what would be done.
    #[arg(long)]
    dry_run: bool,
    /// Put plugins in the place of others with the same name. These are kept, and come back with --uninstall.
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    network: Network,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Where")]
struct Place {
    /// For this runtime; may be repeated [default: those that are found].
    #[arg(long, value_name = "NAME", value_enum)]
    runtime: Vec<RuntimeName>,
    /// The folder of plugins, instead of the runtime's.
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// The folder of networks, instead of the runtime's.
    #[arg(long, value_name = "DIR")]
    conf_dir: Option<PathBuf>,
    /// The root of the node: an image or a chroot. Other folders are named as they are called there.
    #[arg(long, value_name = "DIR", default_value = "/", hide_default_value = true)]
    root: PathBuf,
    /// Where podwire-cni is [default: beside this program].
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Network")]
struct Network {
    /// Write a network of this kind, even if there are others [default: bridge, if the folder has no network].
    #[arg(long, value_name = "KIND", value_enum, conflicts_with_all = ["conflist", "no_conflist"])]
    network: Option<ShapeName>,
    /// The pods' addresses; once for IPv4, once for IPv6 [default: 10.66.0.0/16].
    #[arg(long, value_name = "CIDR", conflicts_with_all = ["conflist", "no_conflist"])]
    subnet: Vec<IpNet>,
    /// The interface of the node that pods share, for macvlan.
    #[arg(long, value_name = "IFNAME", requires = "network")]
    master: Option<String>,
    /// The network's name.
    #[arg(long, value_name = "NAME", default_value = "podwire", conflicts_with_all = ["conflist", "no_conflist"])]
    name: String,
    /// The highest version of CNI that the network's runtime knows [default: what all its releases know].
    #[arg(long, value_name = "VERSION", conflicts_with_all = ["conflist", "no_conflist"])]
    cni_version: Option<String>,
    /// Put this file as the network, as it is.
    #[arg(long, value_name = "FILE", conflicts_with = "no_conflist")]
    conflist: Option<PathBuf>,
    /// The name of the file in the folder: runtimes read the first [default: 10-podwire.conflist, or FILE's own].
    #[arg(long, value_name = "NAME", conflicts_with = "no_conflist")]
    conf_name: Option<String>,
    /// Put plugins only.
    #[arg(long)]
    no_conflist: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum RuntimeName {
    Containerd,
    Crio,
    Podman,
    K3s,
    Rke2,
    Microk8s,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ShapeName {
    /// Pods on a bridge of the node, masqueraded.
    Bridge,
    /// A cable for each pod, routed and masqueraded.
    Ptp,
    /// Pods on the wire of one of the node's interfaces (--master).
    Macvlan,
    /// As a flannel daemon says.
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

impl From<ShapeName> for NetworkKind {
    fn from(name: ShapeName) -> NetworkKind {
        match name {
            ShapeName::Bridge => NetworkKind::Bridge,
            ShapeName::Ptp => NetworkKind::Ptp,
            ShapeName::Macvlan => NetworkKind::Macvlan,
            ShapeName::Flannel => NetworkKind::Flannel,
        }
    }
}

impl Install {
    pub(crate) fn run(&self) -> Result<Answer, Failure> {
        let root = Root::at(&self.place.root);
        match self.uninstall {
            true => self.take_back(&root).map_err(Failure::to("cannot uninstall")),
            false => self.put(&root),
        }
    }

    fn put(&self, root: &Root) -> Result<Answer, Failure> {
        let what = "cannot install";
        let turn = self.turn(root).map_err(Failure::to(what))?;
        let wish = Wish::new(self, root)?;
        let paths = wish.targets.iter().map(|target| target.path.as_path());
        let survey = NodeState::read(root, paths).map_err(Failure::to(what))?;
        let plan = InstallPlan::install(&wish.targets, self.replace, &survey);
        if let Some(turn) = turn {
            apply(root, &plan, &wish.program, &turn).map_err(Failure::to(what))?;
        }
        Ok(Report { plan: &plan, layouts: &wish.layouts, warnings: &wish.warnings, dry_run: self.dry_run }
            .answer())
    }

    fn take_back(&self, root: &Root) -> podwire_install::Result<Answer> {
        let turn = self.turn(root)?;
        let plan = InstallPlan::uninstall(&NodeState::read(root, [])?);
        if let Some(turn) = turn {
            apply(root, &plan, "".as_ref(), &turn)?;
        }
        Ok(Report { plan: &plan, layouts: &[], warnings: &[], dry_run: self.dry_run }.answer())
    }

    /// Looking needs no turn, and leaves nothing.
    fn turn(&self, root: &Root) -> podwire_install::Result<Option<InstallLock>> {
        match self.dry_run {
            true => Ok(None),
            false => InstallLock::acquire(root).map(Some),
        }
    }
}
