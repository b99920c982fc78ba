//! A folder of networks as kubelet and its runtimes see it: which networks can be used, which one is the default, and
//! could a pod be attached to it now?
//!
//! A file is usable if it loads, names at least one plugin, and every plugin of it is installed and speaks the
//! network's version. The first usable file, by name, is the default network. All others of the folder are reported with
//! the reason, and hide nothing.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use podwire_cni_plugin::Command;
use podwire_cni_spec::NetworkName;

use crate::folder::{is_list, Loaded};
use crate::invoke::{Place, Step};
use crate::{ConfigFolder, Error, Network, Problem, Result, Runtime};

/// The networks of a folder, as they were when it was read last.
///
/// ```
/// # let dir = std::env::temp_dir().join(format!("podwire-catalogue-example-{}", std::process::id()));
/// # std::fs::create_dir_all(&dir)?;
/// std::fs::write(dir.join("10-pods.conflist"), r#"{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "nowhere"}]}"#)?;
///
/// let catalogue = podwire_cni_runtime::Catalogue::read(podwire_cni_runtime::ConfigFolder::new(&dir), podwire_cni_runtime::Runtime::new(["/opt/cni/bin"]));
/// assert!(catalogue.default_network().is_err());
/// assert!(catalogue.skipped()[0].to_string().contains("failed to find plugin \"nowhere\""));
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Catalogue<'p> {
    folder: ConfigFolder,
    runtime: Runtime<'p>,
    usable: Vec<Network>,
    skipped: Vec<Problem>,
    /// Lists that were found usable, with what their plugins' files were then: a foreign plugin is executed to learn
    /// its versions, which need not be done again while it is the same file.
    proven: Vec<Proof>,
}

#[derive(Debug, PartialEq)]
struct Proof {
    list: Vec<u8>,
    plugins: Vec<(PathBuf, u64, i64, i64, u64)>,
}

impl Proof {
    /// What a network's usability depends on; none if that cannot be told.
    fn of(network: &Network, chain: &[Step<'_, '_>]) -> Option<Proof> {
        let files = chain.iter().filter_map(|step| match &step.place {
            Place::File(file) => Some(file),
            Place::Here(_) => None,
        });
        let look = |file: &PathBuf| {
            let found = fs::metadata(file).ok()?;
            Some((file.clone(), found.ino(), found.mtime(), found.mtime_nsec(), found.len()))
        };
        let plugins = files.map(look).collect::<Option<_>>()?;
        Some(Proof { list: network.list.bytes.clone(), plugins })
    }
}

/// Whether pods can be attached.
#[derive(Clone, Debug, PartialEq)]
pub enum Readiness {
    /// To this network.
    Ready {
        /// The default network.
        network: NetworkName,
        /// Its file.
        file: PathBuf,
    },
    /// Not now.
    NotReady {
        /// The default network, if there is one.
        network: Option<NetworkName>,
        /// Why: as the plugin said it, or what is wrong with the folder.
        why: podwire_cni_spec::Error,
    },
}

impl<'p> Catalogue<'p> {
    /// Reads the folder. Plugins are those that `runtime` would find.
    pub fn read(folder: ConfigFolder, runtime: Runtime<'p>) -> Catalogue<'p> {
        let (usable, skipped, proven) = Default::default();
        let mut catalogue = Catalogue { folder, runtime, usable, skipped, proven };
        catalogue.refresh();
        catalogue
    }

    /// Reads the folder again. Returns whether anything is different.
    pub fn refresh(&mut self) -> bool {
        let Loaded { networks, mut problems } = self.folder.load();
        let (mut usable, mut proven) = (Vec::new(), Vec::new());
        for network in networks {
            match self.prove(&network) {
                Ok(proof) => {
                    proven.extend(proof);
                    usable.push(network);
                }
                Err(error) => problems.push(Problem { path: network.path, error }),
            }
        }
        problems.sort_by(|one, other| one.path.cmp(&other.path));
        let told = |problems: &[Problem]| problems.iter().map(ToString::to_string).collect::<Vec<_>>();
        let changed = usable != self.usable || told(&problems) != told(&self.skipped);
        (self.usable, self.skipped, self.proven) = (usable, problems, proven);
        changed
    }

    fn prove(&self, network: &Network) -> Result<Option<Proof>> {
        let chain = self.runtime.chain(&network.list, Command::Version)?;
        let proof = Proof::of(network, &chain);
        if !proof.as_ref().is_some_and(|proof| self.proven.contains(proof)) {
            self.runtime.validate_chain(&network.list, &chain)?;
        }
        Ok(proof)
    }

    /// Where it is read from.
    pub fn folder(&self) -> &ConfigFolder {
        &self.folder
    }

    /// Who runs its plugins.
    pub fn runtime(&self) -> &Runtime<'p> {
        &self.runtime
    }

    /// The networks that can be used, in the order of their files' names.
    pub fn networks(&self) -> &[Network] {
        &self.usable
    }

    /// The files that cannot, and why.
    pub fn skipped(&self) -> &[Problem] {
        &self.skipped
    }

    /// The network that pods are attached to: that of the first usable file.
    pub fn default_network(&self) -> Result<&Network> {
        self.usable.first().ok_or_else(|| self.missing(None))
    }

    /// The network `name`. If several files have it the first `.conflist` wins, then the first of the others.
    pub fn find(&self, name: &str) -> Result<&Network> {
        let named = || self.usable.iter().filter(|network| network.list.name.as_str() == name);
        let list = named().find(|network| is_list(&network.path));
        list.or_else(|| named().next()).ok_or_else(|| self.missing(Some(name)))
    }

    /// Whether a pod could be attached to the default network, as its plugins' STATUS says.
    pub fn readiness(&self) -> Readiness {
        let network = match self.default_network() {
            Ok(network) => network,
            Err(error) => return Readiness::NotReady { network: None, why: error.to_cni() },
        };
        let name = network.list.name.clone();
        match self.runtime.status(&network.list) {
            Ok(()) => Readiness::Ready { network: name, file: network.path.clone() },
            Err(error) => Readiness::NotReady { network: Some(name), why: error.to_cni() },
        }
    }

    fn missing(&self, name: Option<&str>) -> Error {
        let told = |problem: &Problem| {
            let error = problem.error.to_cni();
            // The file's name stands before it.
            let msg = error.msg.replace(&format!("{}: ", problem.path.display()), "");
            Problem { path: problem.path.clone(), error: podwire_cni_spec::Error { msg, ..error }.into() }
        };
        Error::NotFound {
            folder: self.folder.path().to_owned(),
            name: name.map(str::to_owned),
            present: self.usable.iter().map(|network| network.list.name.to_string()).collect(),
            problems: self.skipped.iter().map(told).collect(),
        }
    }

    /// Every folder on which the answers depend.
    pub(crate) fn places(&self) -> Vec<PathBuf> {
        let own = self.folder.path();
        let entries = fs::read_dir(own).into_iter().flatten().flatten().map(|entry| entry.path());
        let of_plugins = entries.filter(|path| path.is_dir());
        let named = self.folder.load().networks;
        let kinds = named.iter().flat_map(|network| &network.list.plugins).map(|plugin| &plugin.kind);
        let vendors: Vec<_> = kinds.filter_map(|kind| self.runtime.vendor(kind)).collect();
        let fixed = std::iter::once(own.to_owned()).chain(self.runtime.path.iter().cloned());
        fixed.chain(of_plugins).chain(vendors).collect()
    }
}

impl Readiness {
    /// Whether it is.
    pub fn is_ready(&self) -> bool {
        matches!(self, Readiness::Ready { .. })
    }

    /// The default network, if there is one.
    pub fn network(&self) -> Option<&NetworkName> {
        match self {
            Readiness::Ready { network, .. } => Some(network),
            Readiness::NotReady { network, .. } => network.as_ref(),
        }
    }

    /// The default network's file, if it is ready.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Readiness::Ready { file, .. } => Some(file),
            Readiness::NotReady { .. } => None,
        }
    }
}
