//! Where networks, plugins and records are.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use podwire_cni_plugin::Registry;
use podwire_cni_runtime::{Cache, Catalogue, ConfigFolder, Runtime};

use crate::duration;

/// Plugins that come with their own folder are in `/opt/<type>/bin`.
const VENDORS: &str = "/opt";
const PLUGIN_FOLDERS: [&str; 3] = ["/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"];

/// Options that every verb has.
#[derive(Debug, Args)]
#[command(next_help_heading = "Where")]
pub(crate) struct Place {
    /// Where networks are configured [default: $NETCONFPATH or /etc/cni/net.d].
    #[arg(long, value_name = "DIR")]
    conf_dir: Option<PathBuf>,
    /// Where plugins are; may be repeated [default: $CNI_PATH or /opt/cni/bin, /usr/lib/cni, /usr/libexec/cni].
    #[arg(long, value_name = "DIR")]
    plugin_dir: Vec<PathBuf>,
    /// Where attachments are remembered.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/cni")]
    cache_dir: PathBuf,
    /// How long plugins may take.
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = duration::parse)]
    timeout: Duration,
}

impl Place {
    pub(crate) fn folder(&self) -> ConfigFolder {
        let named = std::env::var_os("NETCONFPATH").filter(|path| !path.is_empty()).map(PathBuf::from);
        ConfigFolder::new(self.conf_dir.clone().or(named).unwrap_or_else(|| "/etc/cni/net.d".into()))
    }

    /// The networks that can be used.
    pub(crate) fn catalogue(&self) -> Catalogue<'static> {
        Catalogue::read(self.folder(), self.runtime())
    }

    pub(crate) fn cache(&self) -> Cache {
        Cache::new(&self.cache_dir)
    }

    pub(crate) fn runtime(&self) -> Runtime<'static> {
        let named = || std::env::var_os("CNI_PATH").map(|path| split(&path)).filter(|path| !path.is_empty());
        let path = match self.plugin_dir.is_empty() {
            false => self.plugin_dir.clone(),
            true => named().unwrap_or_else(|| PLUGIN_FOLDERS.iter().map(PathBuf::from).collect()),
        };
        Runtime::new(path)
            .vendors(VENDORS)
            .cache_folder(&self.cache_dir)
            .timeout(self.timeout)
            .registry(registry())
    }
}

/// The plugins of this program.
pub(crate) fn registry() -> Registry<'static> {
    podwire_plugins::registry()
}

/// The folders of `CNI_PATH`.
pub(crate) fn split(path: &std::ffi::OsStr) -> Vec<PathBuf> {
    std::env::split_paths(path).filter(|folder| !folder.as_os_str().is_empty()).collect()
}
