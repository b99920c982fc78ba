//! Converts Calico's etcd values to its Kubernetes objects and back.
//!
//! Both have the same content with different field names. Known fields are translated; unknown ones, of a newer Calico,
//! are copied unchanged in both directions.

use ipnet::IpNet;
use podwire_block_ipam::store::{Entry, Revision};
use podwire_block_ipam::{key, AffinityOwner, Key};
use serde_json::{json, Map, Value};

use crate::group::ApiGroup;
use crate::kind::{Kind, CONFIG_NAME, NODE_OWNER_PREFIX};
use crate::name;

type Fields = Map<String, Value>;

/// The fields of a block in etcd's order: the name in etcd and in the object.
const BLOCK: [(&str, &str); 9] = [
    ("cidr", "cidr"),
    ("affinity", "affinity"),
    ("affinity_claim_time", "affinityClaimTime"),
    ("allocations", "allocations"),
    ("unallocated", "unallocated"),
    ("attributes", "attributes"),
    ("sequenceNumber", "sequenceNumber"),
    ("sequenceNumberForAllocation", "sequenceNumberForAllocation"),
    ("deleted", "deleted"),
];

/// The fields of the IPAM configuration, likewise.
const CONFIG: [(&str, &str); 5] = [
    ("strict_affinity", "strictAffinity"),
    ("auto_allocate_blocks", "autoAllocateBlocks"),
    ("maxBlocksPerHost", "maxBlocksPerHost"),
    ("kubeVirtVMAddressPersistence", "kubeVirtVMAddressPersistence"),
    ("ipCooldownSeconds", "ipCooldownSeconds"),
];

/// The annotation of a handle that records the owner of a node.
const NODE_OWNER: &str = "podwire/node-owner";

/// Whether an object is marked as deleted. In affinities of the older group the mark is a text.
pub(crate) fn is_marked(object: &Value) -> bool {
    match &object["spec"]["deleted"] {
        Value::String(text) => text == "true",
        mark => mark.as_bool().unwrap_or(false),
    }
}

fn deleted(kind: Kind, group: ApiGroup, is_deleted: bool) -> Value {
    match (kind, group) {
        (Kind::Affinity, ApiGroup::V1) => Value::String(is_deleted.to_string()),
        _ => Value::Bool(is_deleted),
    }
}

/// The key of an object. A malformed object gets a key that does not parse, so that clients see and report it. `None`
/// for an IPAM configuration with another name, which Calico ignores, and for a handle of another kind.
pub(crate) fn key_of(kind: Kind, object: &Value) -> Option<String> {
    let spec = &object["spec"];
    let names_owner = object["metadata"]["annotations"].get(NODE_OWNER).is_some();
    if matches!(kind, Kind::Handle | Kind::NodeOwner) && names_owner != (kind == Kind::NodeOwner) {
        return None;
    }
    let cidr = || spec["cidr"].as_str()?.parse::<IpNet>().ok().map(|cidr| cidr.trunc());
    let parsed = match kind {
        Kind::Block => cidr().map(Key::Block),
        Kind::Affinity => {
            let owner = spec["node"].as_str().map(|name| match spec["type"].as_str() {
                Some("virtual") => AffinityOwner::Virtual(name.into()),
                _ => AffinityOwner::host(name),
            });
            owner.zip(cidr()).map(|(owner, cidr)| Key::Affinity(owner, cidr))
        }
        Kind::Handle => spec["handleID"].as_str().map(|id| Key::Handle(id.into())),
        Kind::Config if object["metadata"]["name"] != CONFIG_NAME => return None,
        Kind::Config => Some(Key::Config),
        _ => None,
    };
    let root = match kind {
        Kind::Affinity => key::HOST_AFFINITIES,
        _ => kind.roots()[0],
    };
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let name = name.strip_prefix(NODE_OWNER_PREFIX).filter(|_| kind == Kind::NodeOwner).unwrap_or(name);
    Some(parsed.map_or_else(|| format!("{root}{name}"), |key| key.to_string()))
}

/// Converts an object to an etcd value. A malformed object gives a malformed value.
pub(crate) fn value(kind: Kind, mut object: Value) -> Vec<u8> {
    if kind.is_resource() {
        let object = object.as_object_mut().map(std::mem::take).unwrap_or_default();
        return encode(resource(kind.name(ApiGroup::V3), object));
    }
    if kind == Kind::NodeOwner {
        return object["metadata"]["annotations"][NODE_OWNER].as_str().unwrap_or_default().into();
    }
    let mut spec = object["spec"].as_object_mut().map(std::mem::take).unwrap_or_default();
    let mut value = Fields::new();
    let is_deleted = is_marked(&json!({"spec": {"deleted": spec.get("deleted")}}));
    match kind {
        Kind::Block => {
            spec.insert("deleted".into(), is_deleted.into());
            spec.entry("affinity").or_insert(Value::Null);
            // It is obsolete, and not in etcd.
            drop_if(&mut spec, "strictAffinity", |value| value == &Value::Bool(false));
            translate(&BLOCK, &mut spec, &mut value);
        }
        Kind::Affinity => {
            let state = spec.shift_remove("state").filter(|state| state != "").unwrap_or("confirmed".into());
            value.insert("state".into(), state);
            value.insert("deleted".into(), is_deleted.into());
            ["deleted", "node", "type", "cidr"].iter().for_each(|field| drop(spec.shift_remove(*field)));
        }
        Kind::Handle => {
            value.insert("block".into(), spec.shift_remove("block").unwrap_or_else(|| json!({})));
            value.insert("deleted".into(), is_deleted.into());
            ["deleted", "handleID"].iter().for_each(|field| drop(spec.shift_remove(*field)));
        }
        _ => {
            for (_, field) in CONFIG {
                drop_if(&mut spec, field, |value| [json!(false), json!(0)].contains(value));
            }
            translate(&CONFIG, &mut spec, &mut value);
        }
    }
    value.extend(spec);
    encode(value)
}

/// A resource as in etcd: without the metadata of one API server.
fn resource(kind: &str, mut object: Fields) -> Fields {
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        ["resourceVersion", "managedFields"].iter().for_each(|field| drop(metadata.shift_remove(*field)));
    }
    let mut value = Fields::new();
    value.insert("kind".into(), kind.into());
    value.insert("apiVersion".into(), ApiGroup::V3.name().into());
    value.extend(object.into_iter().filter(|(field, _)| !["kind", "apiVersion"].contains(&field.as_str())));
    value
}

/// Writes an etcd value into an object: a new one, or the one to replace.
pub(crate) fn fill(key: &Key, group: ApiGroup, value: &[u8], object: &mut Value) -> Result<(), String> {
    let (kind, name) = Kind::of(key).ok_or("it is not a custom resource")?;
    let mut value = decode(value)?;
    if kind == Kind::NodeOwner {
        object["spec"] = json!({ "handleID": name, "block": {}, "deleted": false });
        object["metadata"]["annotations"][NODE_OWNER] = Value::Object(value).to_string().into();
    } else if kind.is_resource() {
        let Some(Value::Object(metadata)) = value.get_mut("metadata") else {
            return Err("it has no metadata".into());
        };
        let version = object["metadata"].get("resourceVersion").cloned();
        metadata.shift_remove("resourceVersion");
        metadata.extend(version.map(|version| ("resourceVersion".to_owned(), version)));
        *object = Value::Object(value);
    } else {
        object["spec"] = Value::Object(spec(key, kind, group, value));
    }
    object["apiVersion"] = group.name().into();
    object["kind"] = kind.name(group).into();
    object["metadata"]["name"] = name.into();
    if let Key::Affinity(owner, cidr) = key {
        for (label, value) in name::labels(owner, *cidr) {
            object["metadata"]["labels"][label] = value;
        }
    }
    Ok(())
}

fn spec(key: &Key, kind: Kind, group: ApiGroup, mut value: Fields) -> Fields {
    let mut spec = Fields::new();
    let is_deleted = value.get("deleted").and_then(Value::as_bool).unwrap_or(false);
    match key {
        Key::Block(_) => {
            for (etcd_name, object_name) in BLOCK {
                spec.extend(value.shift_remove(etcd_name).map(|value| (object_name.to_owned(), value)));
            }
            drop_if(&mut spec, "affinity", Value::is_null);
            spec.extend(value);
            spec.entry("strictAffinity").or_insert(false.into());
            return spec;
        }
        Key::Affinity(owner, cidr) => {
            spec.insert("state".into(), value.shift_remove("state").unwrap_or("confirmed".into()));
            spec.insert("node".into(), owner.name().into());
            spec.insert("type".into(), name::type_of(owner).into());
            spec.insert("cidr".into(), cidr.to_string().into());
            value.shift_remove("type");
            spec.insert("deleted".into(), deleted(kind, group, is_deleted));
            value.shift_remove("deleted");
        }
        Key::Handle(id) => {
            spec.insert("handleID".into(), id.clone().into());
        }
        _ => {
            for (etcd_name, object_name) in CONFIG {
                spec.extend(value.shift_remove(etcd_name).map(|value| (object_name.to_owned(), value)));
            }
            for needed in ["strictAffinity", "autoAllocateBlocks"] {
                spec.entry(needed).or_insert(false.into());
            }
        }
    }
    spec.extend(value);
    spec
}

/// Annotations of a Kubernetes Node, and the fields of Calico's Node object.
const NODE: [(&str, &str); 9] = [
    ("projectcalico.org/ASNumber", "/bgp/asNumber"),
    ("projectcalico.org/IPv4Address", "/bgp/ipv4Address"),
    ("projectcalico.org/IPv6Address", "/bgp/ipv6Address"),
    ("projectcalico.org/IPv4IPIPTunnelAddr", "/bgp/ipv4IPIPTunnelAddr"),
    ("projectcalico.org/RouteReflectorClusterID", "/bgp/routeReflectorClusterID"),
    ("projectcalico.org/IPv4VXLANTunnelAddr", "/ipv4VXLANTunnelAddr"),
    ("projectcalico.org/VXLANTunnelMACAddr", "/vxlanTunnelMACAddr"),
    ("projectcalico.org/IPv6VXLANTunnelAddr", "/ipv6VXLANTunnelAddr"),
    ("projectcalico.org/VXLANTunnelMACAddrV6", "/vxlanTunnelMACAddrV6"),
];

/// Converts a Kubernetes Node to Calico's Node object. Calico's labels are in an annotation; labels of Kubernetes have
/// precedence.
pub(crate) fn node(object: &Value) -> Vec<u8> {
    let metadata = &object["metadata"];
    let annotations = &metadata["annotations"];
    let own = annotations["projectcalico.org/labels"].as_str().unwrap_or("{}");
    // Each node writes this about itself. An invalid annotation must not hide other nodes, so it counts as no labels.
    let mut labels: Fields = serde_json::from_str(own).unwrap_or_default();
    labels.extend(metadata["labels"].as_object().cloned().unwrap_or_default());
    let mut spec = json!({ "orchRefs": [{ "nodeName": metadata["name"], "orchestrator": "k8s" }] });
    for (annotation, field_path) in NODE {
        if let Some(text) = annotations[annotation].as_str().filter(|text| !text.is_empty()) {
            match field_path.strip_prefix("/bgp/") {
                Some(field) => spec["bgp"][field] = text.into(),
                None => spec[&field_path[1..]] = text.into(),
            }
        }
    }
    let metadata = json!({
        "name": metadata["name"], "uid": metadata["uid"],
        "creationTimestamp": metadata["creationTimestamp"], "labels": labels,
    });
    let node = json!({
        "kind": "Node", "apiVersion": ApiGroup::V3.name(), "metadata": metadata, "spec": spec,
    });
    node.to_string().into_bytes()
}

/// The entry of a Kubernetes Node: Calico's Node object.
pub(crate) fn node_entry(node: &Value) -> Result<Entry, String> {
    let name = node["metadata"]["name"].as_str().unwrap_or_default();
    let key = Key::Node(name.into()).to_string();
    Ok(Entry { key, value: self::node(node), revision: version(node)? })
}

/// The entry of an object; `None` if Calico ignores the object.
pub(crate) fn entry(kind: Kind, object: Value) -> Result<Option<Entry>, String> {
    let Some(key) = key_of(kind, &object) else { return Ok(None) };
    let revision = version(&object)?;
    Ok(Some(Entry { key, value: value(kind, object), revision }))
}

/// The version of an object. It has always been a number, and Kubernetes guarantees that since 1.35.
pub(crate) fn version(object: &Value) -> Result<Revision, String> {
    let text = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    text.parse().map(Revision).map_err(|_| format!("its resourceVersion {text:?} is not a number"))
}

/// The annotations of a Kubernetes Node for Calico's Node object. `null` removes an annotation.
pub(crate) fn annotations(node: &[u8]) -> Result<Fields, String> {
    let node = Value::Object(decode(node)?);
    let spec = &node["spec"];
    let text = |value: &Value| match value {
        Value::String(text) if text.is_empty() => Value::Null,
        Value::Number(number) => number.to_string().into(),
        other => other.clone(),
    };
    let annotation = |(annotation, field_path): (&str, &str)| {
        (annotation.to_owned(), spec.pointer(field_path).map_or(Value::Null, text))
    };
    Ok(NODE.into_iter().map(annotation).collect())
}

/// Moves fields of an object into a value, with etcd's names and order.
fn translate(table: &[(&str, &str)], spec: &mut Fields, value: &mut Fields) {
    for (etcd_name, object_name) in table {
        value.extend(spec.shift_remove(*object_name).map(|field| ((*etcd_name).to_owned(), field)));
    }
}

fn drop_if(fields: &mut Fields, field: &str, condition: impl Fn(&Value) -> bool) {
    if fields.get(field).is_some_and(condition) {
        fields.shift_remove(field);
    }
}

/// Old versions of Calico wrote an empty value for a confirmed affinity.
fn decode(value: &[u8]) -> Result<Fields, String> {
    match value {
        [] => Ok(Fields::new()),
        text => serde_json::from_slice(text).map_err(|error| format!("it is not a JSON object: {error}")),
    }
}

fn encode(value: Fields) -> Vec<u8> {
    Value::Object(value).to_string().into_bytes()
}

#[cfg(test)]
mod tests;
