//! From Calico's values in etcd to its objects in Kubernetes and back.
//!
//! They say the same in two spellings. Fields that are known here are translated; those that are not go through untouched in both
//! directions, so that what a newer Calico has written is there after our write too.

use ipnet::IpNet;
use podwire_block_ipam::{key, AffinityOwner, Key};
use serde_json::{json, Map, Value};

use crate::kind::{Kind, SETTINGS};
use crate::name;
use crate::ApiGroup;

type Fields = Map<String, Value>;

/// Fields of a block, in etcd's order; the second is how the object spells it.
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

/// Fields of the settings, likewise.
const SETTING: [(&str, &str); 5] = [
    ("strict_affinity", "strictAffinity"),
    ("auto_allocate_blocks", "autoAllocateBlocks"),
    ("maxBlocksPerHost", "maxBlocksPerHost"),
    ("kubeVirtVMAddressPersistence", "kubeVirtVMAddressPersistence"),
    ("ipCooldownSeconds", "ipCooldownSeconds"),
];

/// Whether somebody has marked an object as deleted. Of affinities in the older group the mark is a text.
pub(crate) fn is_marked(object: &Value) -> bool {
    match &object["spec"]["deleted"] {
        Value::String(text) => text == "true",
        mark => mark.as_bool().unwrap_or(false),
    }
}

/// Marks an object as deleted.
pub(crate) fn mark(kind: Kind, group: ApiGroup, object: &mut Value) {
    object["spec"]["deleted"] = deleted(kind, group, true);
}

fn deleted(kind: Kind, group: ApiGroup, is_deleted: bool) -> Value {
    match (kind, group) {
        (Kind::Affinity, ApiGroup::V1) => Value::String(is_deleted.to_string()),
        _ => Value::Bool(is_deleted),
    }
}

/// The key of an object. One that does not say what it is about gets a key that speaks of nothing: it is not lost, and whoever
/// looks at it can tell that it makes no sense.
pub(crate) fn key_of(kind: Kind, object: &Value) -> Option<String> {
    let spec = &object["spec"];
    let cidr = || spec["cidr"].as_str()?.parse::<IpNet>().ok().map(|cidr| cidr.trunc());
    let known = match kind {
        Kind::Block => cidr().map(Key::Block),
        Kind::Affinity => {
            let owner = spec["node"].as_str().map(|name| match spec["type"].as_str() {
                Some("virtual") => AffinityOwner::Virtual(name.into()),
                _ => AffinityOwner::host(name),
            });
            owner.zip(cidr()).map(|(owner, cidr)| Key::Affinity(owner, cidr))
        }
        Kind::Handle => spec["handleID"].as_str().map(|id| Key::Handle(id.into())),
        Kind::Config => match object["metadata"]["name"] == SETTINGS {
            true => Some(Key::Config),
            false => return None,
        },
        _ => None,
    };
    let root = match kind {
        Kind::Affinity => key::AFFINITIES[0],
        _ => kind.roots()[0],
    };
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    Some(known.map_or_else(|| format!("{root}{name}"), |key| key.to_string()))
}

/// An object as a value of etcd. Of one that makes no sense it is a value that makes none.
pub(crate) fn value(kind: Kind, mut object: Value) -> Vec<u8> {
    if kind.is_resource() {
        let object = object.as_object_mut().map(std::mem::take).unwrap_or_default();
        return encode(resource(kind.name(ApiGroup::V3), object));
    }
    let mut spec = object["spec"].as_object_mut().map(std::mem::take).unwrap_or_default();
    let mut value = Fields::new();
    let is_deleted = is_marked(&json!({"spec": {"deleted": spec.get("deleted")}}));
    match kind {
        Kind::Block => {
            spec.insert("deleted".into(), is_deleted.into());
            spec.entry("affinity").or_insert(Value::Null);
            // It means nothing any more, and is not in etcd.
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
            for (_, field) in SETTING {
                drop_if(&mut spec, field, |value| [json!(false), json!(0)].contains(value));
            }
            translate(&SETTING, &mut spec, &mut value);
        }
    }
    value.extend(spec);
    encode(value)
}

/// Calico's object of a resource as it stands in etcd: without what belongs to one API server only.
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

/// Puts a value of etcd into an object: a new one, or the one that is to be replaced.
pub(crate) fn fill(key: &Key, group: ApiGroup, value: &[u8], object: &mut Value) -> Result<(), String> {
    let (kind, name) = Kind::of(key).ok_or("it has no object of its own")?;
    let mut value = decode(value)?;
    if kind.is_resource() {
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
            for (ours, theirs) in BLOCK {
                spec.extend(value.shift_remove(ours).map(|value| (theirs.to_owned(), value)));
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
            for (ours, theirs) in SETTING {
                spec.extend(value.shift_remove(ours).map(|value| (theirs.to_owned(), value)));
            }
            for needed in ["strictAffinity", "autoAllocateBlocks"] {
                spec.entry(needed).or_insert(false.into());
            }
        }
    }
    spec.extend(value);
    spec
}

/// What stands in annotations of a Kubernetes Node, and where Calico's object of it has that.
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

/// A Node object of Kubernetes as Calico's object of it, as far as it matters: Calico's own labels stand in an annotation, and those of
/// Kubernetes go before them.
pub(crate) fn node(object: &Value) -> Vec<u8> {
    let metadata = &object["metadata"];
    let annotations = &metadata["annotations"];
    let own = annotations["projectcalico.org/labels"].as_str().unwrap_or("{}");
    // Every node may write this about itself, and what it writes must not hide the others: nonsense is no labels.
    let mut labels: Fields = serde_json::from_str(own).unwrap_or_default();
    labels.extend(metadata["labels"].as_object().cloned().unwrap_or_default());
    let mut spec = json!({ "orchRefs": [{ "nodeName": metadata["name"], "orchestrator": "k8s" }] });
    for (annotation, place) in NODE {
        if let Some(text) = annotations[annotation].as_str().filter(|text| !text.is_empty()) {
            match place.strip_prefix("/bgp/") {
                Some(field) => spec["bgp"][field] = text.into(),
                None => spec[&place[1..]] = text.into(),
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

/// The annotations of a Kubernetes Node that say what Calico's object of it says; those that say nothing are to go.
pub(crate) fn annotations(node: &[u8]) -> Result<Fields, String> {
    let node = Value::Object(decode(node)?);
    let spec = &node["spec"];
    let text = |value: &Value| match value {
        Value::String(text) if text.is_empty() => Value::Null,
        Value::Number(number) => number.to_string().into(),
        other => other.clone(),
    };
    let annotation = |(annotation, place): (&str, &str)| {
        (annotation.to_owned(), spec.pointer(place).map_or(Value::Null, text))
    };
    Ok(NODE.into_iter().map(annotation).collect())
}

/// Moves fields of an object into a value, each under etcd's name and at its place.
fn translate(table: &[(&str, &str)], spec: &mut Fields, value: &mut Fields) {
    for (ours, theirs) in table {
        value.extend(spec.shift_remove(*theirs).map(|field| ((*ours).to_owned(), field)));
    }
}

fn drop_if(fields: &mut Fields, field: &str, is_so: impl Fn(&Value) -> bool) {
    if fields.get(field).is_some_and(is_so) {
        fields.shift_remove(field);
    }
}

/// An old Calico wrote nothing at all for an affinity that it had.
fn decode(value: &[u8]) -> Result<Fields, String> {
    match value {
        [] => Ok(Fields::new()),
        text => serde_json::from_slice(text).map_err(|error| format!("it is no JSON object: {error}")),
    }
}

fn encode(value: Fields) -> Vec<u8> {
    Value::Object(value).to_string().into_bytes()
}

#[cfg(test)]
mod tests;
