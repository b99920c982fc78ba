//! VERSION: which versions of the protocol a plugin speaks, and whether a network's plugins speak its own.

use std::collections::BTreeSet;

use cni::{code, json, NetworkList, Version, VersionInfo};
use cni_plugin::exec::Execution;
use cni_plugin::Command;
use serde_json::json;

use crate::invoke::{failed, Place};
use crate::{Error, Result, Runtime};

impl Runtime<'_> {
    /// The versions that the plugin `kind` supports.
    pub fn version_info(&self, kind: &str) -> Result<VersionInfo> {
        self.ask_version(kind).map_err(|source| {
            let (kind, network) = (kind.to_owned(), String::new());
            Error::Plugin { kind, network, verb: "version", source: Box::new(source) }
        })
    }

    /// Whether every plugin of the network is there and speaks the network's version. Returns the capabilities
    /// that some plugin asks for: what is worth passing in [`Identity::capabilities`](crate::Identity).
    pub fn validate(&self, list: &NetworkList) -> Result<Vec<String>> {
        self.chain(list, Command::Version)?;
        let unfit = |kind: &str| -> cni_plugin::Result<()> {
            match self.ask_version(kind)?.supports(list.version) {
                true => Ok(()),
                false => {
                    let text =
                        format!("plugin {kind} does not support config version {:?}", list.version.as_str());
                    Err(cni::Error::new(code::INCOMPATIBLE_VERSION, text).into())
                }
            }
        };
        let kinds = list.plugins.iter().map(|plugin| plugin.kind.as_str());
        let check = |kind: &str| unfit(kind).map_err(failed(list, kind, Command::Version)).err();
        Error::all(kinds.filter_map(check).collect())?;
        let capabilities: BTreeSet<_> =
            list.plugins.iter().flat_map(|plugin| plugin.capabilities.clone()).collect();
        Ok(capabilities.into_iter().collect())
    }

    fn ask_version(&self, kind: &str) -> cni_plugin::Result<VersionInfo> {
        let file = match self.place(kind)? {
            Place::Here(plugin) => return Ok(VersionInfo::new(plugin.versions())),
            Place::File(file) => file,
        };
        // Plugins built with the oldest libraries insist on these variables even for VERSION.
        let env = [
            ("CNI_COMMAND", "VERSION"),
            ("CNI_NETNS", "dummy"),
            ("CNI_IFNAME", "dummy"),
            ("CNI_PATH", "dummy"),
        ];
        let env = env.into_iter().map(|(name, value)| (name, value.into())).collect();
        let stdin = json!({ "cniVersion": Version::CURRENT }).to_string();
        match (Execution { file: &file, env, stdin: stdin.as_bytes(), deadline: self.deadline() }).run() {
            Ok(output) => Ok(VersionInfo::from_json(&json::parse(&output)?)?),
            // Plugins of 0.1.0 do not know the verb.
            Err(error) if error.to_cni().msg == "unknown CNI_COMMAND: VERSION" => {
                Ok(VersionInfo::new(&[Version::V0_1_0]))
            }
            Err(error) => Err(error),
        }
    }
}
