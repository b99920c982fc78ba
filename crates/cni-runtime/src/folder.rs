//! The directory of network configs, usually `/etc/cni/net.d`.
//!
//! A network is a `.conflist` file, or a `.conf` or `.json` file with a single plugin, the older format. The subdirectory with the
//! network's name may contain more plugins of a list. An invalid file is reported and hides no other.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use podwire_cni_spec::{json, NetworkList, PluginConfig};
use serde_json::Value;

use crate::{Error, Problem, Result};

/// A directory of network configs.
///
/// ```
/// # let dir = std::env::temp_dir().join(format!("podwire-folder-example-{}", std::process::id()));
/// # std::fs::create_dir_all(&dir)?;
/// std::fs::write(dir.join("10-pods.conflist"), r#"{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "ptp"}]}"#)?;
/// std::fs::write(dir.join("20-torn.conflist"), r#"{"cniVers"#)?;
///
/// let folder = podwire_cni_runtime::ConfigFolder::new(&dir);
/// assert_eq!(folder.find("pods")?.list.plugins[0].kind, "ptp");
/// assert_eq!(folder.load().problems.len(), 1);
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ConfigFolder {
    path: PathBuf,
}

/// A network, and the file that it was read from.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    /// The file.
    pub path: PathBuf,
    /// The list, with the plugins of the subdirectory.
    pub list: NetworkList,
}

/// The content of a directory.
#[derive(Debug, Default)]
pub struct Loaded {
    /// The networks, sorted by file name.
    pub networks: Vec<Network>,
    /// The invalid files, and why.
    pub problems: Vec<Problem>,
}

impl Network {
    /// The network of one file. Its other plugins are in the subdirectory beside it.
    pub fn read(path: impl Into<PathBuf>) -> Result<Network> {
        let path = path.into();
        let list = ConfigFolder::new(path.parent().unwrap_or(Path::new("."))).read(&path)?;
        Ok(Network { path, list })
    }

    /// The files of the subdirectory with more plugins of the list.
    pub(crate) fn plugin_files(&self) -> Vec<PathBuf> {
        let folder =
            self.path.parent().filter(|_| is_list(&self.path) && !self.list.load_only_inlined_plugins);
        let files = folder.map(|folder| files(&folder.join(self.list.name.as_str()), &["conf"]));
        files.and_then(Result::ok).unwrap_or_default()
    }
}

impl ConfigFolder {
    /// The directory at `path`. It need not exist.
    pub fn new(path: impl Into<PathBuf>) -> ConfigFolder {
        ConfigFolder { path: path.into() }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads every file. A missing directory is empty.
    pub fn load(&self) -> Loaded {
        let mut loaded = Loaded::default();
        let files = match files(&self.path, &["conflist", "conf", "json"]) {
            Ok(files) => files,
            Err(error) => {
                loaded.problems.push(Problem { path: self.path.clone(), error });
                return loaded;
            }
        };
        for path in files {
            match self.read(&path) {
                Ok(list) => {
                    let list = NetworkList { file: Some(path.clone()), ..list };
                    loaded.networks.push(Network { path, list });
                }
                Err(error) => loaded.problems.push(Problem { path, error }),
            }
        }
        loaded
    }

    /// The network `name`. If several files have it the first `.conflist` wins, then the first of the others.
    pub fn find(&self, name: &str) -> Result<Network> {
        let Loaded { mut networks, problems } = self.load();
        // A stable sort: within each kind the order of the names stays.
        networks.sort_by_key(|network| !is_list(&network.path));
        match networks.iter().position(|network| network.list.name.as_str() == name) {
            Some(at) => Ok(networks.swap_remove(at)),
            None => Err(self.missing(Some(name), &networks, problems)),
        }
    }

    /// The network that kubelet's runtimes attach pods to: the first valid file by name.
    pub fn default_network(&self) -> Result<Network> {
        let Loaded { mut networks, problems } = self.load();
        if networks.is_empty() {
            return Err(self.missing(None, &networks, problems));
        }
        Ok(networks.swap_remove(0))
    }

    fn missing(&self, name: Option<&str>, networks: &[Network], problems: Vec<Problem>) -> Error {
        Error::NotFound {
            folder: self.path.clone(),
            name: name.map(str::to_owned),
            present: networks.iter().map(|network| network.list.name.to_string()).collect(),
            problems,
        }
    }

    fn read(&self, path: &Path) -> Result<NetworkList> {
        let bytes = fs::read(path).map_err(Error::file("read", path))?;
        if !is_list(path) {
            return Ok(NetworkList::from_single(&bytes)?);
        }
        let mut list = NetworkList::parse(&bytes)?;
        if !list.load_only_inlined_plugins {
            list = with_plugins(list, &self.path)?;
        }
        if list.plugins.is_empty() {
            let text = "error parsing configuration list: no plugin configs found";
            return Err(podwire_cni_spec::Error::invalid_config(text).into());
        }
        Ok(list)
    }
}

pub(crate) fn is_list(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "conflist")
}

/// The files of a directory with one of these endings, sorted by name.
fn files(folder: &Path, endings: &[&str]) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(Error::file("read directory", folder))?,
    };
    let wanted =
        |path: &PathBuf| path.extension().is_some_and(|end| endings.iter().any(|ending| end == *ending));
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).filter(wanted).collect();
    files.retain(|path| !path.is_dir());
    files.sort();
    Ok(files)
}

/// Appends the plugins of the subdirectory. They are added to the list's bytes too, which a runtime records for DEL; libcni does
/// not do that and so does not run those plugins on DEL.
fn with_plugins(list: NetworkList, folder: &Path) -> Result<NetworkList> {
    let files = files(&folder.join(list.name.as_str()), &["conf"])?;
    if files.is_empty() {
        return Ok(list);
    }
    let mut document = json::parse(&list.bytes)?;
    let mut all = json::get(&document, "plugins").and_then(Value::as_array).cloned().unwrap_or_default();
    for path in files {
        let bytes = fs::read(&path).map_err(Error::file("read", &path))?;
        let plugin = PluginConfig::from_bytes(&bytes).map_err(|error| podwire_cni_spec::Error {
            msg: format!("{}: {}", path.display(), error.msg),
            ..error
        })?;
        all.push(Value::Object(plugin.raw));
    }
    if let Some(object) = document.as_object_mut() {
        json::set(object, "plugins", Value::Array(all));
    }
    Ok(NetworkList::parse(document.to_string().as_bytes())?)
}
