//! VERSION: the versions that a plugin supports, and whether a network's plugins support the network's version.

use std::collections::BTreeSet;

use podwire_cni_plugin::exec::Execution;
use podwire_cni_plugin::Command;
use podwire_cni_spec::{code, json, NetworkList, Version, VersionInfo};
use serde_json::json;

use crate::invoke::{failed, Location, Step};
use crate::{Error, Result, Runtime};

impl Runtime<'_> {
    /// The versions that the plugin `kind` supports.
    pub fn version_info(&self, kind: &str) -> Result<VersionInfo> {
        self.locate(kind).and_then(|location| self.ask_version(&location)).map_err(|source| {
            let (kind, network) = (kind.to_owned(), String::new());
            Error::Plugin { kind, network, verb: "version", file: None, source: Box::new(source) }
        })
    }

    /// Checks that every plugin of the network is installed and supports the network's version. Returns the capabilities of the
    /// plugins: what to pass in [`Identity::capabilities`](crate::Identity).
    pub fn validate(&self, list: &NetworkList) -> Result<Vec<String>> {
        self.validate_chain(list, &self.chain(list, Command::Version)?)
    }

    /// The same for plugins that were already found.
    pub(crate) fn validate_chain(&self, list: &NetworkList, chain: &[Step<'_, '_>]) -> Result<Vec<String>> {
        let check_version = |step: &Step<'_, '_>| -> podwire_cni_plugin::Result<()> {
            let kind = &step.config.kind;
            if self.ask_version(&step.location)?.supports(list.version) {
                return Ok(());
            }
            let text = format!("plugin {kind} does not support config version {:?}", list.version.as_str());
            Err(podwire_cni_spec::Error::new(code::INCOMPATIBLE_VERSION, text).into())
        };
        let check = |step: &Step<'_, '_>| {
            check_version(step).map_err(failed(list, &step.config.kind, Command::Version)).err()
        };
        Error::all(chain.iter().filter_map(check).collect())?;
        let capabilities: BTreeSet<_> =
            list.plugins.iter().flat_map(|plugin| plugin.capabilities.clone()).collect();
        Ok(capabilities.into_iter().collect())
    }

    fn ask_version(&self, location: &Location<'_>) -> podwire_cni_plugin::Result<VersionInfo> {
        let file = match location {
            Location::InProcess(plugin) => return Ok(VersionInfo::new(plugin.versions())),
            Location::File(file) => file,
        };
        // Plugins built with the oldest libraries require these variables even for VERSION.
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
