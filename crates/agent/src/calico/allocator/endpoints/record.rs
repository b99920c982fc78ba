//! The object of an endpoint as Calico writes it, with the fields in Go's order. Fields of other programs stay.

use std::net::IpAddr;

use ipnet::IpNet;
use podwire_agent_ipc::pods::{Endpoint, IpNat, StringMap};
use podwire_block_ipam::timestamp::Timestamp;
use serde_json::{json, Map, Value};

use super::name::Name;
use super::profiles::{profiles_of, strings};

/// The fields of Calico's `WorkloadEndpointSpec` in its order, and whether this agent sets them.
const SPEC: &[(&str, bool)] = &[
    ("orchestrator", true),
    ("workload", false),
    ("node", true),
    ("containerID", true),
    ("pod", true),
    ("endpoint", true),
    ("serviceAccountName", true),
    ("ipNetworks", true),
    ("ipNATs", true),
    ("ipv4Gateway", false),
    ("ipv6Gateway", false),
    ("profiles", true),
    ("interfaceName", true),
    ("mac", true),
    ("ports", true),
    ("allowSpoofedSourcePrefixes", true),
    ("qosControls", true),
];

/// The first fields of an object's metadata.
const METADATA: &[(&str, bool)] = &[
    ("name", true),
    ("generateName", true),
    ("namespace", true),
    ("uid", true),
    ("creationTimestamp", true),
    ("labels", true),
];

/// The fields of Calico's `QoSControls` in its order.
const LIMITS: [&str; 14] = [
    "ingressBandwidth",
    "ingressBurst",
    "ingressPeakrate",
    "ingressMinburst",
    "egressBandwidth",
    "egressBurst",
    "egressPeakrate",
    "egressMinburst",
    "ingressPacketRate",
    "ingressPacketBurst",
    "egressPacketRate",
    "egressPacketBurst",
    "ingressMaxConnections",
    "egressMaxConnections",
];

/// The object of an endpoint, based on the existing one.
pub(super) fn object(endpoint: &Endpoint, name: &Name, existing: Option<&Value>, now: Timestamp) -> Value {
    let nothing = Value::Null;
    let existing = existing.unwrap_or(&nothing);
    let text = |field: &str| existing["metadata"][field].as_str().filter(|text| !text.is_empty());
    let metadata = json!({
        "name": name.text(),
        "generateName": endpoint.metadata.generate_name,
        "namespace": name.namespace,
        "uid": uid(&endpoint.metadata.uid, text("uid")),
        "creationTimestamp": text("creationTimestamp").map_or_else(|| now.rfc3339(), str::to_owned),
        "labels": labels(endpoint, name),
    });
    let mut object = json!({
        "kind": "WorkloadEndpoint",
        "apiVersion": "projectcalico.org/v3",
        "metadata": in_order(METADATA, metadata, &existing["metadata"]),
        "spec": in_order(SPEC, spec(endpoint, name), &existing["spec"]),
    });
    if let (Some(object), Some(existing)) = (object.as_object_mut(), existing.as_object()) {
        for (field, value) in existing {
            object.entry(field.clone()).or_insert_with(|| value.clone());
        }
    }
    object
}

/// The pod's UID; without one, that of the existing object, or a random one.
fn uid(known: &str, existing: Option<&str>) -> String {
    let random = || std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default();
    match (known, existing) {
        ("", Some(existing)) => existing.into(),
        ("", None) => random().trim().into(),
        (known, _) => known.into(),
    }
}

/// The pod's labels, and those that Calico adds to every endpoint. A service account's name may be too long for a
/// label.
fn labels(endpoint: &Endpoint, name: &Name) -> StringMap {
    let mut labels = endpoint.metadata.labels.clone();
    labels.insert("projectcalico.org/namespace".into(), name.namespace.clone());
    labels.insert("projectcalico.org/orchestrator".into(), name.orchestrator.into());
    let account = &endpoint.metadata.service_account;
    if !account.is_empty() && account.len() < 63 {
        labels.insert("projectcalico.org/serviceaccount".into(), account.clone());
    }
    labels
}

fn spec(endpoint: &Endpoint, name: &Name) -> Value {
    let networks: Vec<String> = endpoint.addresses.iter().map(|ip| IpNet::from(*ip).to_string()).collect();
    let nat = |nat: &IpNat| json!({ "internalIP": nat.internal, "externalIP": nat.external });
    let nats: Vec<Value> = endpoint.ip_nats.iter().map(nat).collect();
    let prefixes: Vec<String> =
        endpoint.allowed_source_prefixes.iter().map(|net| net.trunc().to_string()).collect();
    let limits =
        LIMITS.iter().filter_map(|limit| Some(((*limit).into(), (*endpoint.limits.get(*limit)?).into())));
    json!({
        "orchestrator": name.orchestrator,
        "node": name.node,
        "containerID": endpoint.owner.container,
        "pod": endpoint.pod,
        "endpoint": name.endpoint,
        "serviceAccountName": endpoint.metadata.service_account,
        "ipNetworks": networks,
        "ipNATs": nats,
        "profiles": endpoint.profiles,
        "interfaceName": endpoint.interface,
        "mac": endpoint.mac,
        "ports": endpoint.metadata.ports,
        "allowSpoofedSourcePrefixes": prefixes,
        "qosControls": Value::Object(limits.collect()),
    })
}

/// The fields in their order: this agent's, then those of other programs, then unknown ones. Like in Go, empty fields
/// are omitted.
fn in_order(order: &[(&str, bool)], mut ours: Value, existing: &Value) -> Value {
    let mut all = Map::new();
    for (field, is_ours) in order {
        let value = if *is_ours { ours[*field].take() } else { existing[*field].clone() };
        if !is_empty(&value) {
            all.insert((*field).into(), value);
        }
    }
    for (field, value) in existing.as_object().into_iter().flatten() {
        if !order.iter().any(|(known, _)| known == field) {
            all.insert(field.clone(), value.clone());
        }
    }
    Value::Object(all)
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

/// The endpoint that an object describes. What the object does not contain comes from `endpoint`.
pub(super) fn read(object: &Value, endpoint: &Endpoint) -> Endpoint {
    let spec = &object["spec"];
    let text = |field: &str| spec[field].as_str().unwrap_or_default().to_owned();
    let address = |text: &String| -> Option<IpAddr> {
        text.parse::<IpNet>().map(|net| net.addr()).or_else(|_| text.parse()).ok()
    };
    Endpoint {
        profiles: profiles_of(object),
        addresses: strings(&spec["ipNetworks"]).iter().filter_map(address).collect(),
        interface: text("interfaceName"),
        mac: text("mac"),
        ..endpoint.clone()
    }
}

/// The profile of a network without policies: it allows all egress, and ingress from the same network; in Kubernetes,
/// all ingress.
pub(super) fn profile(network: &str, is_pod: bool, now: Timestamp) -> Value {
    let source = if is_pod { json!({}) } else { json!({ "selector": format!("has({network})") }) };
    json!({
        "kind": "Profile",
        "apiVersion": "projectcalico.org/v3",
        "metadata": { "name": network, "uid": uid("", None), "creationTimestamp": now.rfc3339() },
        "spec": {
            "ingress": [{ "action": "Allow", "source": source, "destination": {} }],
            "egress": [{ "action": "Allow", "source": {}, "destination": {} }],
            "labelsToApply": { network: "" },
        },
    })
}

#[cfg(test)]
mod tests {
    use podwire_agent_ipc::pods::{PodMetadata, PodPort};
    use podwire_agent_ipc::Owner;

    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_unix_nanos(1_787_405_600_000_000_000)
    }

    fn endpoint() -> Endpoint {
        let labels = [("app", "nginx")].map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let port = PodPort { name: "http".into(), protocol: "TCP".into(), port: 80, ..PodPort::default() };
        let metadata = PodMetadata {
            uid: "5d3c8ab1-0000-4000-8000-000000000001".into(),
            generate_name: "nginx-7f-".into(),
            labels,
            service_account: "web".into(),
            ports: vec![port],
            ..PodMetadata::default()
        };
        let owner =
            Owner { network: "k8s-pod-network".into(), container: "4711ab".into(), ifname: "eth0".into() };
        Endpoint {
            owner,
            namespace: "default".into(),
            pod: "nginx".into(),
            metadata,
            profiles: vec!["kns.default".into(), "ksa.default.web".into()],
            addresses: vec!["10.244.1.5".parse().unwrap(), "fd00::5".parse().unwrap()],
            ip_nats: vec![IpNat {
                internal: "10.244.1.5".parse().unwrap(),
                external: "192.0.2.7".parse().unwrap(),
            }],
            interface: "calic440f455693".into(),
            mac: "0a:58:0a:f4:01:05".into(),
            allowed_source_prefixes: vec!["10.8.1.0/24".parse().unwrap()],
            limits: [("ingressBurst".into(), 4_294_967_296), ("ingressBandwidth".into(), 1_000_000)].into(),
            ..Endpoint::default()
        }
    }

    fn written(endpoint: &Endpoint, existing: Option<&Value>) -> String {
        let name = Name::of(endpoint, "node1");
        let bytes = podwire_block_ipam::encode_as_go(&object(endpoint, &name, existing, now())).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_pods_endpoint_equals_calicos_byte_for_byte() {
        let expected = concat!(
            r#"{"kind":"WorkloadEndpoint","apiVersion":"projectcalico.org/v3","metadata":{"name":"node1-k8s-nginx-eth0","#,
            r#""generateName":"nginx-7f-","namespace":"default","uid":"5d3c8ab1-0000-4000-8000-000000000001","#,
            r#""creationTimestamp":"2026-08-22T13:33:20Z","labels":{"app":"nginx","projectcalico.org/namespace":"default","#,
            r#""projectcalico.org/orchestrator":"k8s","projectcalico.org/serviceaccount":"web"}},"spec":{"orchestrator":"k8s","#,
            r#""node":"node1","containerID":"4711ab","pod":"nginx","endpoint":"eth0","serviceAccountName":"web","#,
            r#""ipNetworks":["10.244.1.5/32","fd00::5/128"],"ipNATs":[{"internalIP":"10.244.1.5","externalIP":"192.0.2.7"}],"#,
            r#""profiles":["kns.default","ksa.default.web"],"interfaceName":"calic440f455693","mac":"0a:58:0a:f4:01:05","#,
            r#""ports":[{"name":"http","protocol":"TCP","port":80,"hostPort":0,"hostIP":""}],"#,
            r#""allowSpoofedSourcePrefixes":["10.8.1.0/24"],"qosControls":{"ingressBandwidth":1000000,"ingressBurst":4294967296}}}"#,
        );
        assert_eq!(written(&endpoint(), None), expected);
    }

    #[test]
    fn a_container_without_a_pod_has_fewer_fields() {
        let mut bare = endpoint();
        bare.metadata = PodMetadata { uid: "u".into(), ..PodMetadata::default() };
        bare.pod.clear();
        bare.namespace.clear();
        bare.profiles = vec!["k8s-pod-network".into()];
        bare.addresses.truncate(1);
        (bare.ip_nats, bare.allowed_source_prefixes, bare.limits) = Default::default();
        let expected = concat!(
            r#"{"kind":"WorkloadEndpoint","apiVersion":"projectcalico.org/v3","metadata":{"name":"node1-cni-4711ab-eth0","#,
            r#""namespace":"default","uid":"u","creationTimestamp":"2026-08-22T13:33:20Z","#,
            r#""labels":{"projectcalico.org/namespace":"default","projectcalico.org/orchestrator":"cni"}},"#,
            r#""spec":{"orchestrator":"cni","node":"node1","containerID":"4711ab","endpoint":"eth0","ipNetworks":["10.244.1.5/32"],"#,
            r#""profiles":["k8s-pod-network"],"interfaceName":"calic440f455693","mac":"0a:58:0a:f4:01:05"}}"#,
        );
        assert_eq!(written(&bare, None), expected);
    }

    #[test]
    fn fields_of_other_programs_stay() {
        let existing = json!({
            "kind": "WorkloadEndpoint", "apiVersion": "projectcalico.org/v3", "status": {"seen": true},
            "metadata": {"name": "x", "uid": "old", "creationTimestamp": "2020-01-01T00:00:00Z", "annotations": {"a": "b"}},
            "spec": {"containerID": "former", "workload": "w", "ipv4Gateway": "169.254.1.1", "newer": [1], "ipNATs": [1]},
        });
        let mut endpoint = endpoint();
        endpoint.ip_nats.clear();
        let object: Value = serde_json::from_str(&written(&endpoint, Some(&existing))).unwrap();
        assert_eq!(object["metadata"]["creationTimestamp"], "2020-01-01T00:00:00Z");
        assert_eq!(object["metadata"]["annotations"], json!({"a": "b"}));
        assert_eq!(object["status"], json!({"seen": true}));
        let fields: Vec<&String> = object["spec"].as_object().unwrap().keys().collect();
        assert_eq!(fields[..4], ["orchestrator", "workload", "node", "containerID"]);
        assert_eq!(fields.last().unwrap().as_str(), "newer");
        assert_eq!(object["spec"]["ipv4Gateway"], "169.254.1.1");
        assert_eq!(object["spec"]["containerID"], "4711ab");
        assert_eq!(object["spec"].get("ipNATs"), None, "ours, and empty");
    }

    #[test]
    fn a_profile_allows_traffic_within_its_network() {
        let cni = profile("net", false, now());
        assert_eq!(cni["spec"]["ingress"][0]["source"]["selector"], "has(net)");
        assert_eq!(profile("net", true, now())["spec"]["ingress"][0]["source"], json!({}));
    }
}
