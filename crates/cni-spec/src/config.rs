//! Network configs: what an administrator writes into `/etc/cni/net.d`.

mod address_scope;
mod gc;
mod plugin;
mod request;

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::{json, Value};

pub use address_scope::{AddressScope, L2Segment};
pub use gc::{set_valid_attachments, valid_attachments, ValidAttachment};
pub use plugin::PluginConfig;

use crate::{json, Error, NetworkName, Version};

/// A network: its plugins in the order in which ADD runs them (a `.conflist` file).
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkList {
    /// The name, unique among the networks of a node.
    pub name: NetworkName,
    /// The version for calls of the plugins.
    pub version: Version,
    /// CHECK must not be called.
    pub disable_check: bool,
    /// GC must not be called.
    pub disable_gc: bool,
    /// Plugins of the subdirectory must not be added.
    pub load_only_inlined_plugins: bool,
    /// The plugins. Can be empty until the runtime has added those of the subdirectory.
    pub plugins: Vec<PluginConfig>,
    /// The list as it was read; runtimes record it for DEL.
    pub bytes: Vec<u8>,
    /// The file that it was read from, for messages.
    pub file: Option<PathBuf>,
}

/// The prefix of libcni's errors, which tools and runbooks know.
const WHERE: &str = "error parsing configuration list";

impl NetworkList {
    /// The keys of a list.
    pub const KEYS: &'static [&'static str] = &[
        "cniVersion",
        "cniVersions",
        "name",
        "disableCheck",
        "disableGC",
        "loadOnlyInlinedPlugins",
        "plugins",
    ];

    /// Reads a config list.
    ///
    /// The version is the highest one of `cniVersions` and `cniVersion` that this crate knows; a list may name
    /// newer ones. A list that names only unknown versions is incompatible (code 1), one that names none is 0.1.0.
    /// Keys come in any case, and booleans may be strings.
    pub fn parse(bytes: &[u8]) -> Result<NetworkList, Error> {
        let document = json::parse(bytes).map_err(|error| error.within(WHERE))?;
        let list: Document = json::decode(&document).map_err(|error| error.within(WHERE))?;
        let name = list.name.ok_or_else(|| Error::invalid_config(format!("{WHERE}: no name")))?;
        if list.load_only_inlined_plugins && list.plugins.is_none() {
            return Err(Error::invalid_config(format!(
                "{WHERE}: `loadOnlyInlinedPlugins` is true, and no 'plugins' key"
            )));
        }
        let parse = |(i, plugin)| {
            PluginConfig::parse(plugin)
                .map_err(|error| error.within(&format!("failed to parse plugin config {i}")))
        };
        Ok(NetworkList {
            name: NetworkName::parse(&name).map_err(|error| error.within(&format!("{WHERE}: name")))?,
            version: choose(&list.cni_version, &list.cni_versions).map_err(|error| error.within(WHERE))?,
            disable_check: list.disable_check,
            disable_gc: list.disable_gc,
            load_only_inlined_plugins: list.load_only_inlined_plugins,
            plugins: list
                .plugins
                .unwrap_or_default()
                .into_iter()
                .enumerate()
                .map(parse)
                .collect::<Result<_, _>>()?,
            bytes: bytes.to_vec(),
            file: None,
        })
    }

    /// Reads a single plugin's config (a `.conf` file from before lists) as the list that has just this plugin.
    /// [`NetworkList::bytes`] is that list, not the file.
    pub fn from_single(bytes: &[u8]) -> Result<NetworkList, Error> {
        const WHERE: &str = "error parsing configuration";
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        #[derive(Default)]
        struct Single {
            cni_version: String,
            name: String,
            plugins: Option<Value>,
            r#type: Option<Value>,
        }
        let plugin = json::parse(bytes).map_err(|error| error.within(WHERE))?;
        let single: Single = json::decode(&plugin).map_err(|error| error.within(WHERE))?;
        if single.r#type.is_none() && single.plugins.is_some() {
            return Err(Error::invalid_config(format!("{WHERE}: missing 'type'")).with_details(
                "'plugins' is there: this is a list, and its file name should end in .conflist",
            ));
        }
        let list = json!({ "cniVersion": single.cni_version, "name": single.name, "plugins": [plugin] });
        NetworkList::parse(list.to_string().as_bytes())
    }

    /// Adds a plugin at the end of the chain, such as one from the folder beside the list.
    pub fn push_plugin(&mut self, plugin: PluginConfig) {
        self.plugins.push(plugin);
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Document {
    cni_version: String,
    cni_versions: Vec<String>,
    name: Option<String>,
    #[serde(deserialize_with = "json::lenient::bool")]
    disable_check: bool,
    #[serde(rename = "disableGC", deserialize_with = "json::lenient::bool")]
    disable_gc: bool,
    #[serde(deserialize_with = "json::lenient::bool")]
    load_only_inlined_plugins: bool,
    plugins: Option<Vec<Value>>,
}

/// The highest known version among those that a list names.
fn choose(version: &str, versions: &[String]) -> Result<Version, Error> {
    let listed = versions.iter().enumerate().map(|(i, text)| (format!("cniVersions[{i}]"), text.as_str()));
    let single = Some(("cniVersion".to_owned(), version)).filter(|_| !version.is_empty());
    let named: Vec<_> = listed.chain(single).collect();
    if let Some((key, text)) = named.iter().find(|(_, text)| !is_version(text)) {
        return Err(Error::invalid_config(format!(
            "{key}: invalid version {text:?}, expected one like 1.1.0"
        )));
    }
    if named.is_empty() {
        return Ok(Version::V0_1_0);
    }
    let known = named.iter().filter_map(|(_, text)| Version::parse(text)).max();
    let all = || named.iter().map(|(_, text)| *text).collect::<Vec<_>>().join(" ");
    known.ok_or_else(|| Version::mismatch(&all(), "runtime", Version::ALL))
}

/// One to three numbers with dots between them; nothing at all is 0.1.0.
fn is_version(text: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    text.is_empty() || (text.split('.').count() <= 3 && text.split('.').all(is_number))
}

#[cfg(test)]
mod tests;
