//! `podwire install`: installs plugins and a network for the container runtimes of this node, and removes them.

mod flags;
mod options;
mod report;

use podwire_install::{apply, InstallLock, InstallPlan, NodeState, Root};

use crate::failure::Failure;
use crate::output::Output;
pub(crate) use flags::Install;
use options::ResolvedOptions;
use report::Report;

pub(crate) const EXAMPLES: &str = "Examples:
  podwire install --dry-run                       show what would be installed
  podwire install                                 plugins, and a network if the node has none
  podwire install --replace                       replace other plugins; --uninstall restores them
  podwire install --network ptp --subnet 10.9.0.0/24 --subnet fd09::/64
  podwire install --conflist my.conflist --conf-name 05-mine.conflist
  podwire install --root /mnt/image --runtime containerd --no-conflist
  podwire install --uninstall                     remove what was installed, restore backups

The directories come from the config of each runtime: containerd's config.toml with its imports,
crio.conf, containers.conf, and the containerd configs of k3s, rke2 and MicroK8s. The record of
installed files is in /var/lib/podwire/install. A file that was changed since its installation is
kept. After an interruption run the same command again.";

impl Install {
    pub(crate) fn run(&self) -> Result<Output, Failure> {
        let root = Root::at(&self.directories.root);
        if self.uninstall {
            self.remove(&root).map_err(Failure::context("cannot uninstall"))
        } else {
            self.install(&root)
        }
    }

    fn install(&self, root: &Root) -> Result<Output, Failure> {
        let what = "cannot install";
        let lock = self.lock(root).map_err(Failure::context(what))?;
        let options = ResolvedOptions::new(self, root)?;
        let paths = options.targets.iter().map(|target| target.path.as_path());
        let state = NodeState::read(root, paths).map_err(Failure::context(what))?;
        let plan = InstallPlan::install(&options.targets, self.replace, &state);
        if let Some(lock) = lock {
            apply(root, &plan, &options.program, &lock).map_err(Failure::context(what))?;
        }
        let (layouts, warnings) = (&options.layouts, &options.warnings);
        Ok(Report { plan: &plan, layouts, warnings, dry_run: self.dry_run }.output())
    }

    fn remove(&self, root: &Root) -> podwire_install::Result<Output> {
        let lock = self.lock(root)?;
        let plan = InstallPlan::uninstall(&NodeState::read(root, [])?);
        if let Some(lock) = lock {
            apply(root, &plan, "".as_ref(), &lock)?;
        }
        Ok(Report { plan: &plan, layouts: &[], warnings: &[], dry_run: self.dry_run }.output())
    }

    /// The lock against other installations. A dry run needs none and leaves no lock file.
    fn lock(&self, root: &Root) -> podwire_install::Result<Option<InstallLock>> {
        if self.dry_run {
            return Ok(None);
        }
        InstallLock::acquire(root).map(Some)
    }
}
