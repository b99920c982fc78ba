//! VERSION: which versions of the protocol a plugin speaks, and whether a network's plugins speak its own.

use std::collections::BTreeSet;

use podwire_cni_plugin::exec::Execution;
use podwire_cni_plugin::Command;
use podwire_cni_spec::{code, json, NetworkList, Version, VersionInfo};
use serde_json::json;

use crate::invoke::{failed, Place, Step};
use crate::{Error, Result, Runtime};

impl Runtime<'_> {
    /// The versions that the plugin `kind` supports.
    pub fn version_info(&self, kind: &str) -> Result<VersionInfo> {
        self.place(kind).and_then(|place| self.ask_version(&place)).map_err(|source| {
            let (kind, network) = (kind.to_owned(), String::new());
            Error::Plugin { kind, network, verb: "version", source: Box::new(source) }
        })
    }

    /// Whether every plugin of the network is there and speaks the network's version. Returns the capabilities
    /// that some plugin asks for: what is worth passing in [`Identity::capabilities`](crate::Identity).
    pub fn validate(&self, list: &NetworkList) -> Result<Vec<String>> {
        self.validate_chain(list, &self.chain(list, Command::Version)?)
    }

    /// As [`validate`](Self::validate), of plugins that were found.
    pub(crate) fn validate_chain(&self, list: &NetworkList, chain: &[Step<'_, '_>]) -> Result<Vec<String>> {
        let unfit = |step: &Step<'_, '_>| -> podwire_cni_plugin::Result<()> {
            let kind = &step.config.kind;
            match self.ask_version(&step.place)?.supports(list.version) {
                true => Ok(()),
                false => {
                    let text =
                        format!("plugin {kind} does not support config version {:?}", list.version.as_str());
                    Err(podwire_cni_spec::Error::new(code::INCOMPATIBLE_VERSION, text).into())
                }
            }
        };
        let check = |step: &Step<'_, '_>| {
            unfit(step).map_err(failed(list, &step.config.kind, Command::Version)).err()
        };
        Error::all(chain.iter().filter_map(check).collect())?;
        let capabilities: BTreeSet<_> =
            list.plugins.iter().flat_map(|plugin| plugin.capabilities.clone()).collect();
        Ok(capabilities.into_iter().collect())
    }

    fn ask_version(&self, place: &Place<'_>) -> podwire_cni_plugin::Result<VersionInfo> {
        let file = match place {
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
        match (Execution { file, env, stdin: stdin.as_bytes(), deadline: self.deadline() }).run() {
            Ok(output) => Ok(VersionInfo::from_json(&json::parse(&output)?)?),
            // Plugins of 0.1.0 do not know the verb.
            Err(error) if error.to_cni().msg == "unknown CNI_COMMAND: VERSION" => {
                Ok(VersionInfo::new(&[Version::V0_1_0]))
            }
            Err(error) => Err(error),
        }
    }
}
