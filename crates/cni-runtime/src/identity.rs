//! The attachment that a call concerns, and the arguments for its plugins.

use std::path::PathBuf;

use podwire_cni_spec::{Args, ContainerId, IfName};
use serde_json::{Map, Value};

use crate::Result;

/// One interface of one container, with the arguments of the call.
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
    /// Capability arguments, for `runtimeConfig` of the plugins that have the capability: `portMappings`, `bandwidth`, `mac`…
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

    /// With a capability argument.
    pub fn capability(mut self, name: impl Into<String>, value: Value) -> Identity {
        self.capabilities.insert(name.into(), value);
        self
    }

    pub(crate) fn netns_text(&self) -> String {
        self.netns.as_deref().map(|path| path.to_string_lossy().into_owned()).unwrap_or_default()
    }
}
