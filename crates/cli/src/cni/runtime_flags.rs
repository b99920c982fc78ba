//! The directories of networks, plugins and records: the flags of every command that runs plugins.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use podwire_cni_plugin::Registry;
use podwire_cni_runtime::{Cache, Catalogue, ConfigFolder, Runtime};

use crate::{duration, plugin_dirs};

/// The parent of vendor directories: a plugin type may be in `/opt/<type>/bin`.
const VENDORS: &str = "/opt";

/// The flags that every command with plugins has.
#[derive(Debug, Args)]
#[command(next_help_heading = "Directories")]
pub(crate) struct RuntimeFlags {
    /// Directory of network configs [default: $NETCONFPATH or /etc/cni/net.d].
    #[arg(long, value_name = "DIR")]
    conf_dir: Option<PathBuf>,
    /// Directory of plugins; repeatable [default: $CNI_PATH, or beside this program and the usual ones].
    #[arg(long, value_name = "DIR")]
    plugin_dir: Vec<PathBuf>,
    /// Directory of the attachment records.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/cni")]
    cache_dir: PathBuf,
    /// Time limit for the plugins.
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = duration::parse)]
    timeout: Duration,
}

impl RuntimeFlags {
    /// The directory of network configs.
    pub(crate) fn configs(&self) -> ConfigFolder {
        let named = std::env::var_os("NETCONFPATH").filter(|path| !path.is_empty()).map(PathBuf::from);
        ConfigFolder::new(self.conf_dir.clone().or(named).unwrap_or_else(|| "/etc/cni/net.d".into()))
    }

    /// The usable networks.
    pub(crate) fn catalogue(&self) -> Catalogue<'static> {
        Catalogue::read(self.configs(), self.runtime())
    }

    pub(crate) fn cache(&self) -> Cache {
        Cache::new(&self.cache_dir)
    }

    pub(crate) fn runtime(&self) -> Runtime<'static> {
        let named = || std::env::var_os("CNI_PATH").map(|path| split(&path)).filter(|path| !path.is_empty());
        let path = if self.plugin_dir.is_empty() {
            named().unwrap_or_else(plugin_dirs::default)
        } else {
            self.plugin_dir.clone()
        };
        Runtime::new(path)
            .vendors(VENDORS)
            .cache_folder(&self.cache_dir)
            .timeout(self.timeout)
            .registry(registry())
    }
}

/// The plugins in this program, which run without exec.
pub(crate) fn registry() -> Registry<'static> {
    podwire_plugins::registry()
}

/// The directories of `CNI_PATH`.
pub(crate) fn split(path: &std::ffi::OsStr) -> Vec<PathBuf> {
    std::env::split_paths(path).filter(|dir| !dir.as_os_str().is_empty()).collect()
}
