//! The requests that a runtime sends to a plugin.

use serde_json::{json, Map, Value};

use super::{gc, NetworkList, PluginConfig};
use crate::{json, ContainerId, IfName};

impl PluginConfig {
    /// The plugin's stdin for ADD, CHECK, DEL and STATUS: its config, the list's name and version, the previous result if there
    /// is one, and the entries of `runtime_config` for its capabilities.
    ///
    /// `capabilities` stays in, against the specification: the reference runtime keeps it, and plugins read it.
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

    /// The plugin's stdin for GC, which removes everything except the `valid` attachments.
    ///
    /// The list has two keys, because the specification renamed it after the release of 1.1.0.
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
