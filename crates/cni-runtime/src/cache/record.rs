//! One record: libcni's `cniCacheV1`.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use base64::engine::general_purpose::STANDARD;
use base64::Engine;
use podwire_cni_plugin::ledger;
use podwire_cni_spec::{json, Args, Attachment, NetworkList, Version};
use podwire_kernel::{Netns, Owner};
use serde::{Deserialize, Serialize};
use serde_json::{json, Map, Value};

use crate::{Error, Identity, Result};

const KIND: &str = "cniCacheV1";

/// The record of one attachment.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Its file.
    pub path: PathBuf,
    /// The network.
    pub network: String,
    /// The container.
    pub container: String,
    /// The interface in the container.
    pub ifname: String,
    /// The container's namespace at the time of ADD. libcni before 1.2 did not record it; then it is taken from the result.
    pub netns: Option<PathBuf>,
    /// `CNI_ARGS` of the ADD.
    pub arg_pairs: Vec<(String, String)>,
    /// Capability arguments of the ADD.
    pub capabilities: Map<String, Value>,
    /// The network's config at the time of ADD.
    pub config: Vec<u8>,
    /// What ADD returned; `None` if it did not finish.
    pub result: Option<Value>,
}

/// The file as it is read.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Document {
    kind: String,
    container_id: String,
    config: String,
    if_name: String,
    network_name: String,
    netns: String,
    cni_args: Vec<(String, String)>,
    capability_args: Map<String, Value>,
    result: Option<Value>,
}

/// The file as it is written, its keys in libcni's order.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Text<'r> {
    kind: &'static str,
    container_id: &'r str,
    config: String,
    if_name: &'r str,
    network_name: &'r str,
    #[serde(skip_serializing_if = "str::is_empty")]
    netns: Cow<'r, str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    cni_args: &'r [(String, String)],
    #[serde(skip_serializing_if = "Map::is_empty")]
    capability_args: &'r Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'r Value>,
}

impl Record {
    /// The record of a new ADD.
    pub(crate) fn new(path: PathBuf, list: &NetworkList, identity: &Identity) -> Record {
        Record {
            path,
            network: list.name.to_string(),
            container: identity.container.to_string(),
            ifname: identity.ifname.to_string(),
            netns: identity.netns.clone(),
            arg_pairs: identity.args.iter().map(|(key, value)| (key.into(), value.into())).collect(),
            capabilities: identity.capabilities.clone(),
            config: list.bytes.clone(),
            result: None,
        }
    }

    /// Parses a file; `None` if it is JSON but not a record.
    pub(crate) fn parse(path: &Path, bytes: &[u8]) -> Result<Option<Record>> {
        let value = json::parse(bytes)?;
        if json::get(&value, "kind").and_then(Value::as_str) != Some(KIND) {
            return Ok(None);
        }
        let document: Document = json::decode(&value)
            .map_err(|error| podwire_cni_spec::Error { code: podwire_cni_spec::code::DECODE, ..error })?;
        let config = STANDARD
            .decode(&document.config)
            .map_err(|error| podwire_cni_spec::Error::decode(format!("config: invalid base64: {error}")))?;
        if document.container_id.is_empty() || document.if_name.is_empty() || document.network_name.is_empty()
        {
            return Err(
                podwire_cni_spec::Error::decode("containerId, ifName or networkName is missing").into()
            );
        }
        let netns = Some(document.netns).filter(|netns| !netns.is_empty());
        let netns = netns.or_else(|| sandbox(document.result.as_ref()?, &document.if_name));
        Ok(Some(Record {
            path: path.to_owned(),
            network: document.network_name,
            container: document.container_id,
            ifname: document.if_name,
            netns: netns.map(PathBuf::from),
            arg_pairs: document.cni_args,
            capabilities: document.capability_args,
            config,
            result: document.result,
        }))
    }

    /// The record of runtimes before 2020: the bare result.
    pub(crate) fn legacy(path: &Path, bytes: &[u8], network: &str, identity: &Identity) -> Result<Record> {
        let result = json::parse(bytes)?;
        Attachment::from_json(&result, Version::V0_1_0)?;
        Ok(Record {
            path: path.to_owned(),
            network: network.to_owned(),
            container: identity.container.to_string(),
            ifname: identity.ifname.to_string(),
            netns: None,
            arg_pairs: Vec::new(),
            capabilities: Map::new(),
            config: Vec::new(),
            result: Some(result),
        })
    }

    /// The content of the file.
    pub(crate) fn to_text(&self) -> String {
        let text = Text {
            kind: KIND,
            container_id: &self.container,
            config: STANDARD.encode(&self.config),
            if_name: &self.ifname,
            network_name: &self.network,
            netns: self.netns.as_deref().map(Path::to_string_lossy).unwrap_or_default(),
            cni_args: &self.arg_pairs,
            capability_args: &self.capabilities,
            result: self.result.as_ref(),
        };
        serde_json::to_string(&text).unwrap_or_default()
    }

    /// The identity of the attachment, without the namespace if its path names another one by now.
    pub fn identity(&self) -> Result<Identity> {
        let identity = Identity::new(&self.container, &self.ifname)?.args(self.args());
        let netns = self.netns.clone().filter(|path| !self.is_reused(path));
        Ok(Identity { netns, capabilities: self.capabilities.clone(), ..identity })
    }

    /// Whether the path names another namespace by now: the PID in it may be reused.
    fn is_reused(&self, path: &Path) -> bool {
        let owner = Owner::new(&*self.network, &*self.container, &*self.ifname);
        let plugins = self.network_list().map(|list| list.plugins).unwrap_or_default();
        let files: Vec<_> = plugins.iter().filter_map(|one| ledger::find(&owner, &one.kind)).collect();
        let entries = files.iter().flat_map(|file| &file.entries);
        matches!(Netns::find(path), Ok(Some(_)))
            && matches!(ledger::find_recorded_netns(path, entries), Ok(None))
    }

    /// `CNI_ARGS` of the ADD, without pairs that plugins could not parse.
    pub fn args(&self) -> Args {
        let readable = self
            .arg_pairs
            .iter()
            .filter(|(key, value)| Args::from_pairs([(key.as_str(), value.as_str())]).is_ok());
        Args::from_pairs(readable.cloned()).unwrap_or_default()
    }

    /// The network as it was at the time of ADD.
    pub fn network_list(&self) -> Result<NetworkList> {
        let list = match NetworkList::parse(&self.config) {
            Ok(list) if !list.plugins.is_empty() => list,
            // Runtimes that call a single plugin record its config.
            _ => NetworkList::from_single(&self.config)?,
        };
        if list.name.as_str() != self.network {
            let text =
                format!("the config in {} is of network {:?}", self.path.display(), list.name.as_str());
            return Err(podwire_cni_spec::Error::invalid_config(text).into());
        }
        Ok(list)
    }

    /// Fills in the arguments that the caller left out with those of the ADD: without the ports, portmap would leave them open.
    /// The namespace is not filled in, because the caller may know that it is gone.
    pub(crate) fn complete(record: Option<&Record>, identity: &Identity) -> Identity {
        let mut identity = identity.clone();
        if let Some(record) = record {
            if identity.args.is_empty() {
                identity.args = record.args();
            }
            if identity.capabilities.is_empty() {
                identity.capabilities = record.capabilities.clone();
            }
        }
        identity
    }

    /// The result of ADD, if it finished and can be decoded.
    pub fn attachment(&self) -> Option<Attachment> {
        Attachment::from_json(self.result.as_ref()?, Version::V0_1_0).ok()
    }

    /// The result of ADD in a version of the spec.
    pub(crate) fn result_in(&self, version: Version) -> Result<Option<Value>> {
        let Some(result) = &self.result else { return Ok(None) };
        Ok(Some(in_version(result.clone(), version, Version::V0_1_0)?.1))
    }
}

/// A result, converted if it is of another version. A result without a version is of version `unstated`.
pub(crate) fn in_version(
    result: Value,
    wanted: Version,
    unstated: Version,
) -> Result<(Attachment, Value), Error> {
    let attachment = Attachment::from_json(&result, unstated)?;
    let stated = match json::get(&result, "cniVersion").and_then(Value::as_str).unwrap_or_default() {
        "" => Some(unstated),
        text => Version::parse(text),
    };
    let value = match result {
        Value::Null => json!({ "cniVersion": wanted }),
        Value::Object(mut object) if stated == Some(wanted) => {
            json::set(&mut object, "cniVersion", json!(wanted));
            Value::Object(object)
        }
        _ => attachment.to_json(wanted)?,
    };
    Ok((attachment, value))
}

/// The namespace of a result's interface.
fn sandbox(result: &Value, ifname: &str) -> Option<String> {
    let interfaces = json::get(result, "interfaces")?.as_array()?.iter();
    let text = |interface, key| json::get(interface, key).and_then(Value::as_str).unwrap_or_default();
    let mut inside = interfaces.filter(|one| text(one, "name") == ifname).map(|one| text(one, "sandbox"));
    inside.find(|sandbox| !sandbox.is_empty()).map(String::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        let args = Args::parse("K8S_POD_NAME=web;IgnoreUnknown=1").unwrap();
        let identity = Identity::new("c0ffee", "eth0").unwrap().netns("/run/netns/blue").args(args);
        identity.capability("portMappings", json!([{"hostPort": 8080}]))
    }

    #[test]
    fn a_record_has_libcnis_format() {
        let list =
            NetworkList::parse(br#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"x"}]}"#).unwrap();
        let mut record = Record::new("/r/n-c0ffee-eth0".into(), &list, &identity());
        record.result = Some(json!({"cniVersion": "1.0.0"}));
        let text = concat!(
            r#"{"kind":"cniCacheV1","containerId":"c0ffee","#,
            r#""config":"eyJjbmlWZXJzaW9uIjoiMS4wLjAiLCJuYW1lIjoibiIsInBsdWdpbnMiOlt7InR5cGUiOiJ4In1dfQ==","#,
            r#""ifName":"eth0","networkName":"n","netns":"/run/netns/blue","#,
            r#""cniArgs":[["K8S_POD_NAME","web"],["IgnoreUnknown","1"]],"#,
            r#""capabilityArgs":{"portMappings":[{"hostPort":8080}]},"result":{"cniVersion":"1.0.0"}}"#
        );
        assert_eq!(record.to_text(), text);
        assert_eq!(Record::parse(&record.path, text.as_bytes()).unwrap(), Some(record.clone()));
        assert_eq!(record.identity().unwrap(), identity());
        assert_eq!(record.network_list().unwrap(), list);
        record.result = None;
        assert!(!record.to_text().contains("result"));
    }

    #[test]
    fn a_missing_namespace_is_read_from_the_result() {
        let text = |interfaces: Value| {
            json!({"kind": KIND, "containerId": "c0ffee", "ifName": "eth0", "networkName": "n", "config": "",
                   "result": {"cniVersion": "0.4.0", "interfaces": interfaces}})
            .to_string()
        };
        let parse = |text: &str| Record::parse(Path::new("/r"), text.as_bytes()).unwrap().unwrap().netns;
        let ends = json!([{"name": "br0"}, {"name": "eth1", "sandbox": "/other"}, {"name": "eth0", "sandbox": "/ns"}]);
        assert_eq!(parse(&text(ends)), Some("/ns".into()));
        assert_eq!(parse(&text(json!([{"name": "eth0", "sandbox": ""}]))), None);
        assert_eq!(parse(&text(json!(7))), None);
    }

    #[test]
    fn results_are_converted_only_if_necessary() {
        let raw = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/24"}], "x": 1});
        assert_eq!(
            in_version(raw.clone(), Version::V1_0_0, Version::V1_0_0).unwrap().1,
            raw,
            "unknown keys stay"
        );
        let old = in_version(raw, Version::V0_4_0, Version::V0_4_0).unwrap().1;
        assert_eq!(old["ips"][0]["version"], "4");
        let stamped = in_version(json!({"cniVersion": ""}), Version::V0_2_0, Version::V0_2_0).unwrap().1;
        assert_eq!(stamped, json!({"cniVersion": "0.2.0"}));
        assert_eq!(
            in_version(Value::Null, Version::V0_4_0, Version::V0_4_0).unwrap().1,
            json!({"cniVersion": "0.4.0"})
        );
    }
}
