//! The networks of a directory as kubelet and its runtimes see them: which ones can be used, which one is the default, and
//! whether a pod could be attached to it now.
//!
//! A file is usable if it is valid, names at least one plugin, and all its plugins are installed and support the network's
//! version. The first usable file, by name, is the default network. Unusable files are reported with the reason.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use podwire_cni_plugin::Command;
use podwire_cni_spec::NetworkName;

use crate::error::config_in;
use crate::folder::{is_list, Loaded};
use crate::invoke::{Location, Step};
use crate::{ConfigFolder, Error, Network, Problem, Result, Runtime};

/// The networks of a directory, as of the last read.
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
    /// Successful validations. A plugin is executed to learn its versions; that is not repeated while its file is unchanged.
    validated: Vec<Validation>,
}

/// A validated list, with the state of its plugins' files.
#[derive(Debug, PartialEq)]
struct Validation {
    list: Vec<u8>,
    plugins: Vec<PluginFile>,
}

/// The state of a plugin's file, by which a replacement is noticed.
#[derive(Debug, PartialEq)]
struct PluginFile {
    path: PathBuf,
    inode: u64,
    mtime: (i64, i64),
    length: u64,
}

impl Validation {
    /// What the validity of a network depends on; `None` if a file cannot be read.
    fn of(network: &Network, chain: &[Step<'_, '_>]) -> Option<Validation> {
        let files = chain.iter().filter_map(|step| match &step.location {
            Location::File(file) => Some(file),
            Location::InProcess(_) => None,
        });
        let stat = |file: &PathBuf| {
            let found = fs::metadata(file).ok()?;
            Some(PluginFile {
                path: file.clone(),
                inode: found.ino(),
                mtime: (found.mtime(), found.mtime_nsec()),
                length: found.len(),
            })
        };
        let plugins = files.map(stat).collect::<Option<_>>()?;
        Some(Validation { list: network.list.bytes.clone(), plugins })
    }
}

/// Whether pods can be attached.
#[derive(Clone, Debug, PartialEq)]
pub enum Readiness {
    /// Pods can be attached to this network.
    Ready {
        /// The default network.
        network: NetworkName,
        /// Its file.
        file: PathBuf,
    },
    /// Pods cannot be attached now.
    NotReady {
        /// The default network, if there is one.
        network: Option<NetworkName>,
        /// Why: the plugin's error, or what is wrong with the directory.
        reason: podwire_cni_spec::Error,
    },
}

impl<'p> Catalogue<'p> {
    /// Reads the directory. `runtime` finds the plugins.
    pub fn read(folder: ConfigFolder, runtime: Runtime<'p>) -> Catalogue<'p> {
        let (usable, skipped, validated) = Default::default();
        let mut catalogue = Catalogue { folder, runtime, usable, skipped, validated };
        catalogue.refresh();
        catalogue
    }

    /// Reads the directory again. Returns whether anything changed.
    pub fn refresh(&mut self) -> bool {
        let Loaded { networks, mut problems } = self.folder.load();
        let (mut usable, mut validated) = (Vec::new(), Vec::new());
        for network in networks {
            match self.validate(&network) {
                Ok(proof) => {
                    validated.extend(proof);
                    usable.push(network);
                }
                Err(error) => problems.push(Problem { path: network.path, error }),
            }
        }
        problems.sort_by(|one, other| one.path.cmp(&other.path));
        let texts = |problems: &[Problem]| problems.iter().map(ToString::to_string).collect::<Vec<_>>();
        let changed = usable != self.usable || texts(&problems) != texts(&self.skipped);
        (self.usable, self.skipped, self.validated) = (usable, problems, validated);
        changed
    }

    fn validate(&self, network: &Network) -> Result<Option<Validation>> {
        let chain = self.runtime.chain(&network.list, Command::Version)?;
        let proof = Validation::of(network, &chain);
        if !proof.as_ref().is_some_and(|proof| self.validated.contains(proof)) {
            self.runtime.validate_chain(&network.list, &chain)?;
        }
        Ok(proof)
    }

    /// The directory.
    pub fn folder(&self) -> &ConfigFolder {
        &self.folder
    }

    /// The runtime of its plugins.
    pub fn runtime(&self) -> &Runtime<'p> {
        &self.runtime
    }

    /// The usable networks, sorted by file name.
    pub fn networks(&self) -> &[Network] {
        &self.usable
    }

    /// The unusable files, and why.
    pub fn skipped(&self) -> &[Problem] {
        &self.skipped
    }

    /// The default network: that of the first usable file.
    pub fn default_network(&self) -> Result<&Network> {
        self.usable.first().ok_or_else(|| self.missing(None))
    }

    /// The network `name`. If several files have it the first `.conflist` wins, then the first of the others.
    pub fn find(&self, name: &str) -> Result<&Network> {
        let named = || self.usable.iter().filter(|network| network.list.name.as_str() == name);
        let list = named().find(|network| is_list(&network.path));
        list.or_else(|| named().next()).ok_or_else(|| self.missing(Some(name)))
    }

    /// Whether a pod could be attached to the default network, by STATUS of its plugins.
    pub fn readiness(&self) -> Readiness {
        let network = match self.default_network() {
            Ok(network) => network,
            Err(error) => return Readiness::NotReady { network: None, reason: error.to_cni() },
        };
        let name = network.list.name.clone();
        match self.runtime.status(&network.list) {
            Ok(()) => Readiness::Ready { network: name, file: network.path.clone() },
            Err(error) => Readiness::NotReady { network: Some(name), reason: error.to_cni() },
        }
    }

    fn missing(&self, name: Option<&str>) -> Error {
        let without_path = |problem: &Problem| {
            let error = problem.error.to_cni();
            // The problem's text begins with the file's name.
            let msg = error.msg.replace(&format!("{}: ", problem.path.display()), "");
            let place = config_in(&problem.path);
            let details = error.details.trim_end_matches(&*place).trim_end_matches("; ").to_owned();
            let error = podwire_cni_spec::Error { msg, details, ..error };
            Problem { path: problem.path.clone(), error: error.into() }
        };
        Error::NotFound {
            folder: self.folder.path().to_owned(),
            name: name.map(str::to_owned),
            present: self.usable.iter().map(|network| network.list.name.to_string()).collect(),
            problems: self.skipped.iter().map(without_path).collect(),
        }
    }

    /// Every directory on which the answers depend.
    pub(crate) fn watched_dirs(&self) -> Vec<PathBuf> {
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
    /// Whether it is ready.
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
