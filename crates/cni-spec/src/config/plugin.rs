//! One plugin's config.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{json, name, Dns, Error};

/// One plugin of a list. Keys that only the plugin knows stay in `raw`.
#[derive(Clone, Debug, PartialEq)]
pub struct PluginConfig {
    /// The plugin: `type`, which is also its file name.
    pub kind: String,
    /// The capabilities that are on: what the runtime may put into `runtimeConfig`.
    pub capabilities: Vec<String>,
    /// The address manager: `ipam.type`.
    pub ipam: Option<String>,
    /// Name servers that the config sets.
    pub dns: Dns,
    /// Everything as it was read.
    pub raw: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Document {
    r#type: String,
    capabilities: BTreeMap<String, Switch>,
    ipam: Option<Ipam>,
    dns: Dns,
}

#[derive(Deserialize)]
struct Switch(#[serde(deserialize_with = "json::lenient::bool")] bool);

#[derive(Deserialize)]
struct Ipam {
    #[serde(default)]
    r#type: String,
}

impl PluginConfig {
    /// Reads a plugin's config (code 7).
    pub fn parse(v: Value) -> Result<PluginConfig, Error> {
        const WHERE: &str = "error parsing configuration";
        let config: Document = json::decode(&v).map_err(|error| error.within(WHERE))?;
        name::plugin_type(&config.r#type).map_err(|error| error.within(WHERE))?;
        let Value::Object(raw) = v else {
            return Err(Error::invalid_config(format!("{WHERE}: expected an object, found {v}")));
        };
        let on = config.capabilities.into_iter().filter(|(_, switch)| switch.0);
        Ok(PluginConfig {
            kind: config.r#type,
            capabilities: on.map(|(capability, _)| capability).collect(),
            ipam: config.ipam.map(|ipam| ipam.r#type).filter(|kind| !kind.is_empty()),
            dns: config.dns,
            raw,
        })
    }

    /// Reads a plugin's config from a file's bytes, such as one in the folder beside a list.
    pub fn from_bytes(bytes: &[u8]) -> Result<PluginConfig, Error> {
        let v = json::parse(bytes).map_err(|error| error.within("error parsing configuration"))?;
        PluginConfig::parse(v)
    }
}
