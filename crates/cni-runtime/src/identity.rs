//! Which container is to be attached, and what the runtime tells its plugins about it.

use std::path::PathBuf;

use podwire_cni_spec::{Args, ContainerId, IfName};
use serde_json::{Map, Value};

use crate::{Record, Result};

/// One interface of one container: what ADD makes, and by which DEL finds it again.
#[derive(Clone, Debug, PartialEq)]
pub struct Identity {
    /// The container's id (`CNI_CONTAINERID`).
    pub container: ContainerId,
    /// The interface's name in the container (`CNI_IFNAME`).
    pub ifname: IfName,
    /// The container's network namespace; `None` when it is gone.
    pub netns: Option<PathBuf>,
    /// `CNI_ARGS`.
    pub args: Args,
    /// What plugins that ask for it find in `runtimeConfig`: `portMappings`, `bandwidth`, `mac`…
    pub capabilities: Map<String, Value>,
}

impl Identity {
    /// The interface `ifname` of the container `container`.
    pub fn new(container: &str, ifname: &str) -> Result<Identity> {
        Ok(Identity {
            container: ContainerId::parse(container)?,
            ifname: IfName::parse(ifname)?,
            netns: None,
            args: Args::default(),
            capabilities: Map::new(),
        })
    }

    /// With the container's network namespace.
    pub fn netns(self, path: impl Into<PathBuf>) -> Identity {
        Identity { netns: Some(path.into()).filter(|path| !path.as_os_str().is_empty()), ..self }
    }

    /// With `CNI_ARGS`.
    pub fn args(self, args: Args) -> Identity {
        Identity { args, ..self }
    }

    /// With a capability's argument, for those plugins of the chain that have the capability.
    pub fn capability(mut self, name: impl Into<String>, value: Value) -> Identity {
        self.capabilities.insert(name.into(), value);
        self
    }

    /// What the caller left out is as it was at ADD: a portmap plugin that is not told the ports would leave them
    /// open. The namespace is not filled in, because the caller may know that it is gone.
    pub(crate) fn completed(mut self, record: Option<&Record>) -> Identity {
        if let Some(record) = record {
            if self.args.is_empty() {
                self.args = record.args();
            }
            if self.capabilities.is_empty() {
                self.capabilities = record.capabilities.clone();
            }
        }
        self
    }

    pub(crate) fn netns_text(&self) -> String {
        self.netns.as_deref().map(|path| path.to_string_lossy().into_owned()).unwrap_or_default()
    }
}
