//! The attachment that a command names, and the arguments for its plugins.

use std::path::PathBuf;

use clap::Args;
use podwire_cni_runtime::{Cache, Identity, Record};
use serde_json::{json, Map, Value};

use super::namespace;
use crate::container_ids::short;
use crate::publish;

/// A container and a network.
#[derive(Debug, Args)]
pub(crate) struct Target {
    /// Name of the network, as in its config.
    pub(crate) network: String,
    /// Network namespace of the container: a path or a name of `ip netns`.
    #[arg(required_unless_present = "container")]
    netns: Option<String>,
    /// Container id [default: the recorded one, or derived from NETNS as cnitool does].
    #[arg(long, short, value_name = "ID")]
    container: Option<String>,
    /// Name of the interface in the container.
    #[arg(long, short, default_value = "eth0")]
    ifname: String,
    /// Pair for CNI_ARGS; repeatable.
    #[arg(long = "arg", value_name = "KEY=VALUE", value_parser = pair)]
    args: Vec<(String, String)>,
    /// Capability argument for runtimeConfig: a JSON object or KEY=JSON; repeatable.
    #[arg(long = "capability", value_name = "JSON", value_parser = capability)]
    capabilities: Vec<Map<String, Value>>,
}

impl Target {
    /// The path of the namespace.
    pub(crate) fn netns(&self) -> Option<PathBuf> {
        self.netns.as_deref().map(namespace::path)
    }

    /// The namespace or the container id, for messages.
    pub(crate) fn name(&self) -> &str {
        self.netns.as_deref().or(self.container.as_deref()).unwrap_or_default()
    }

    /// The name of the interface.
    pub(crate) fn ifname(&self) -> &str {
        &self.ifname
    }

    /// The attachment to create.
    pub(crate) fn identity(&self) -> podwire_cni_runtime::Result<Identity> {
        let netns = self.netns().unwrap_or_default();
        let container = self.container.clone().unwrap_or_else(|| namespace::container_id(&netns));
        let args = podwire_cni_spec::Args::from_pairs(self.args.iter().cloned())?;
        let mut identity = Identity::new(&container, &self.ifname)?.netns(netns).args(args);
        identity
            .capabilities
            .extend(self.capabilities.iter().flatten().map(|(key, value)| (key.clone(), value.clone())));
        Ok(identity)
    }

    /// The existing attachment. Without `--container` it is the recorded attachment of this namespace: its id may come
    /// from another runtime or from another spelling of the path.
    pub(crate) fn existing(&self, cache: &Cache) -> podwire_cni_runtime::Result<Identity> {
        let mut identity = self.identity()?;
        if self.container.is_some() {
            return self.of_short_id(identity, cache);
        }
        let Some(netns) = self.netns() else { return Ok(identity) };
        let is_named = |container: &str| container == identity.container.as_str();
        let records = cache.list().records;
        let mut candidates = records.iter().filter(|record| {
            let here = record.netns.as_deref().is_some_and(|path| namespace::same(path, &netns));
            record.network == self.network
                && record.ifname == self.ifname
                && (here || is_named(&record.container))
        });
        if !candidates.clone().any(|record| is_named(&record.container)) {
            if let Some(record) = candidates.next() {
                identity.container = podwire_cni_spec::ContainerId::parse(&record.container)?;
            }
        }
        Ok(identity)
    }

    /// The attachment whose container has the short id that `podwire cni list` prints, unless there is one with just this id.
    fn of_short_id(&self, mut identity: Identity, cache: &Cache) -> podwire_cni_runtime::Result<Identity> {
        if !matches!(cache.find(&self.network, &identity), Ok(None)) {
            return Ok(identity);
        }
        let given = identity.container.as_str();
        let is_meant = |record: &Record| {
            (&record.network, &record.ifname) == (&self.network, &self.ifname)
                && short(&record.container) == given
        };
        let listing = cache.list();
        let mut meant = listing.records.iter().filter(|record| is_meant(record));
        if let (Some(record), None) = (meant.next(), meant.next()) {
            identity.container = podwire_cni_spec::ContainerId::parse(&record.container)?;
        }
        Ok(identity)
    }
}

/// Ports to publish, as the capability `portMappings`.
#[derive(Debug, Args)]
pub(crate) struct Publish {
    /// Publish a port on the host: [ADDRESS:]HOST_PORT:PORT[/PROTOCOL]; repeatable.
    #[arg(long, short, value_name = "PORTS", value_parser = publish::parse)]
    publish: Vec<Value>,
}

impl Publish {
    /// The identity with the ports.
    pub(crate) fn add_to(&self, identity: Identity) -> Identity {
        use publish::CAPABILITY as PORTS;
        if self.publish.is_empty() {
            return identity;
        }
        let mut ports =
            identity.capabilities.get(PORTS).and_then(Value::as_array).cloned().unwrap_or_default();
        ports.extend(self.publish.iter().cloned());
        identity.capability(PORTS, json!(ports))
    }
}

/// Fails if a capability argument would have no effect, because no plugin of the network takes it.
pub(crate) fn require_capabilities(
    identity: &Identity,
    list: &podwire_cni_spec::NetworkList,
) -> Result<(), podwire_cni_spec::Error> {
    let taken: Vec<&str> =
        list.plugins.iter().flat_map(|plugin| &plugin.capabilities).map(String::as_str).collect();
    let Some(missing) = identity.capabilities.keys().find(|name| !taken.contains(&name.as_str())) else {
        return Ok(());
    };
    let text = format!("network {:?}: none of its plugins has the capability {missing}", &*list.name);
    let own = match missing.as_str() {
        "portMappings" => Some("portmap"),
        "bandwidth" => Some("bandwidth"),
        _ => None,
    };
    let hint = match own {
        Some(plugin) => {
            let example = json!({ "type": plugin, "capabilities": { missing: true } });
            format!("add {example} to its plugins")
        }
        None => format!("add {} to the plugin that takes it", json!({ "capabilities": { missing: true } })),
    };
    let has = if taken.is_empty() { String::new() } else { format!("; it has {}", taken.join(", ")) };
    Err(podwire_cni_spec::Error::invalid_config(text + &has).with_details(hint))
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    if key.is_empty() || [key, value].iter().any(|part| part.contains([';', '='])) {
        return Err("expected KEY=VALUE, without ';' and another '='".to_owned());
    }
    Ok((key.to_owned(), value.to_owned()))
}

/// Parses a JSON object, or KEY=JSON. A value that is not JSON is taken as a string: `mac=c2:11:22:33:44:55`.
fn capability(text: &str) -> Result<Map<String, Value>, String> {
    if text.trim_start().starts_with('{') {
        return serde_json::from_str(text).map_err(|error| error.to_string());
    }
    let (key, value) = text.split_once('=').ok_or(r#"expected {"mac": "c2:…"} or mac=c2:…"#)?;
    let value = serde_json::from_str(value).unwrap_or_else(|_| json!(value));
    Ok(Map::from_iter([(key.to_owned(), value)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_json_or_key_value_pairs() {
        let object = |value: Value| value.as_object().unwrap().clone();
        assert_eq!(capability(r#"{"mac": "x", "ips": []}"#), Ok(object(json!({"mac": "x", "ips": []}))));
        assert_eq!(capability("mac=c2:11"), Ok(object(json!({"mac": "c2:11"}))));
        assert_eq!(
            capability(r#"bandwidth={"ingressRate": 5}"#),
            Ok(object(json!({"bandwidth": {"ingressRate": 5}})))
        );
        assert!(capability("mac").is_err() && capability("{").is_err());
    }

    #[test]
    fn pairs_must_fit_into_cni_args() {
        assert_eq!(pair("IP=10.0.0.5"), Ok(("IP".into(), "10.0.0.5".into())));
        assert!(
            pair("IP").is_err() && pair("=x").is_err() && pair("a=b=c").is_err() && pair("a=b;c").is_err()
        );
    }
}
