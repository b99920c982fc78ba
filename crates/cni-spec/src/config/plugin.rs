//! One plugin's config, and the requests that a runtime makes of it.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{json, Map, Value};

use super::{gc, within, NetworkList};
use crate::{json, name, ContainerId, Dns, Error, IfName};

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
        let config: Document = json::decode(&v).map_err(|error| within(WHERE, error))?;
        name::plugin_type(&config.r#type).map_err(|error| within(WHERE, error))?;
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
        let v = json::parse(bytes).map_err(|error| within("error parsing configuration", error))?;
        PluginConfig::parse(v)
    }

    /// What the plugin gets on stdin for ADD, CHECK, DEL and STATUS: its config, the list's name and version, the
    /// previous result if there is one, and of `runtime_config` what its capabilities ask for.
    ///
    /// `capabilities` stays in, although the specification says otherwise: the reference runtime leaves it in, and
    /// plugins look at it.
    pub fn request(
        &self,
        list: &NetworkList,
        prev: Option<&Value>,
        runtime_config: &Map<String, Value>,
    ) -> Value {
        let mut config = self.addressed(list);
        let asked =
            self.capabilities.iter().filter_map(|capability| runtime_config.get_key_value(capability));
        let asked: Map<String, Value> = asked.map(|(key, value)| (key.clone(), value.clone())).collect();
        if !asked.is_empty() {
            json::set(&mut config, "runtimeConfig", Value::Object(asked));
        }
        if let Some(prev) = prev {
            json::set(&mut config, "prevResult", prev.clone());
        }
        Value::Object(config)
    }

    /// What the plugin gets on stdin for GC: everything that belongs to none of the `valid` attachments is garbage.
    ///
    /// The list stands under two keys, because the specification renamed it after the release of 1.1.0.
    pub fn gc_request(&self, list: &NetworkList, valid: &[(ContainerId, IfName)]) -> Value {
        let mut config = self.addressed(list);
        let attachment = |(id, ifname): &(ContainerId, IfName)| gc::ValidAttachment {
            container_id: id.as_str().into(),
            ifname: ifname.as_str().into(),
        };
        let valid: Vec<_> = valid.iter().map(attachment).collect();
        gc::set_valid_attachments(&mut config, &valid);
        Value::Object(config)
    }

    fn addressed(&self, list: &NetworkList) -> Map<String, Value> {
        let mut config = self.raw.clone();
        json::set(&mut config, "name", json!(list.name));
        json::set(&mut config, "cniVersion", json!(list.version));
        config
    }
}
