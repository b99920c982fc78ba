//! A world: some Services and their slices.

use std::net::IpAddr;

use podwire_ip::IpFamily;
use podwire_services::Kind;
use serde_json::{json, Value};

/// The namespace of all objects.
const NAMESPACE: &str = "x";

/// The node's object.
pub fn node(zone: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": "n", "labels": { "topology.kubernetes.io/zone": zone } },
        "status": { "addresses": [
            { "type": "InternalIP", "address": "192.0.2.1" }, { "type": "InternalIP", "address": "fd00:9::1" }] } })
}

/// The range of cluster IPs.
pub fn service_cidr() -> Value {
    json!({ "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": { "name": "kubernetes" },
        "spec": { "cidrs": ["10.96.0.0/16", "fd00:96::/112"] } })
}

/// Objects that exist at the same time.
#[derive(Clone)]
pub struct World {
    pub name: String,
    pub objects: Vec<Value>,
}

impl World {
    pub fn new(name: impl Into<String>, objects: impl IntoIterator<Item = Value>) -> World {
        World { name: name.into(), objects: objects.into_iter().collect() }
    }

    pub fn services(&self) -> impl Iterator<Item = &Value> {
        self.objects.iter().filter(|object| object["kind"] == "Service")
    }

    /// Whether clients keep their endpoint.
    pub fn is_sticky(&self) -> bool {
        self.services().any(|service| service["spec"]["sessionAffinity"] == "ClientIP")
    }

    /// The Services whose clients keep their endpoint.
    pub fn only_sticky(&self) -> World {
        let sticky = self.services().filter(|service| service["spec"]["sessionAffinity"] == "ClientIP");
        World::new(self.name.clone(), sticky.cloned())
    }

    /// The same world without session affinity.
    pub fn without_affinity(&self) -> World {
        let mut world = self.clone();
        for object in &mut world.objects {
            if object["kind"] == "Service" {
                object["spec"]["sessionAffinity"] = "None".into();
                object["spec"].as_object_mut().unwrap().remove("sessionAffinityConfig");
            }
        }
        world
    }

    /// The objects, one a line.
    pub fn text(&self) -> String {
        self.objects.iter().map(Value::to_string).collect::<Vec<_>>().join("\n")
    }
}

pub fn kind_of(object: &Value) -> Kind {
    Kind::ALL.into_iter().find(|kind| kind.name().1 == object["kind"]).unwrap()
}

/// The families of a Service, in the order of its cluster IPs.
pub const DUAL: &[IpFamily] = &[IpFamily::V4, IpFamily::V6];

/// A Service with the cluster IPs `10.96.0.NUMBER` and `fd00:96::NUMBER`, and one TCP and one UDP port. `more` are fields
/// of its specification. Fields that the API server would add are there.
pub fn service(name: &str, number: u8, families: &[IpFamily], more: Value) -> Value {
    let ips: Vec<String> = families.iter().map(|family| cluster_ip(number, *family).to_string()).collect();
    let names: Vec<&str> = families.iter().map(|family| family_name(*family)).collect();
    let mut spec = json!({ "type": "ClusterIP", "clusterIP": ips[0], "clusterIPs": ips, "ipFamilies": names,
        "sessionAffinity": "None", "internalTrafficPolicy": "Cluster", "ports": [
            { "name": "t", "port": 80, "protocol": "TCP" }, { "name": "u", "port": 80, "protocol": "UDP" }] });
    more.as_object().unwrap().iter().for_each(|(key, value)| spec[key] = value.clone());
    if spec["type"] == "NodePort" || spec["type"] == "LoadBalancer" {
        for (index, port) in (0..).zip(spec["ports"].as_array_mut().unwrap()) {
            if port["nodePort"].is_null() {
                port["nodePort"] = (30000 + u32::from(number) * 10 + index).into();
            }
        }
    }
    json!({ "apiVersion": "v1", "kind": "Service", "spec": spec,
        "metadata": { "namespace": NAMESPACE, "name": name, "uid": format!("uid-{name}") } })
}

pub fn cluster_ip(number: u8, family: IpFamily) -> IpAddr {
    match family {
        IpFamily::V4 => IpAddr::from([10, 96, 0, number]),
        IpFamily::V6 => format!("fd00:96::{number}").parse().unwrap(),
    }
}

pub fn family_name(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "IPv4",
        IpFamily::V6 => "IPv6",
    }
}

/// A slice of a Service with one port number for the ports of these names (`t` is TCP, `u` UDP).
pub fn slice(service: &str, name: &str, family: IpFamily, port: u16, endpoints: &[Value]) -> Value {
    let ports = [("t", "TCP"), ("u", "UDP")];
    let ports = ports.map(|(name, protocol)| json!({ "name": name, "port": port, "protocol": protocol }));
    json!({ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family_name(family),
        "metadata": { "namespace": NAMESPACE, "name": format!("{service}-{name}-{}", family.digit()),
            "uid": format!("uid-{service}-{name}-{}", family.digit()),
            "labels": { "kubernetes.io/service-name": service } },
        "ports": ports, "endpoints": endpoints })
}

/// The servers of a testbed that can be endpoints: three pods of the node, the remote pod, the node, and the host outside.
pub const SERVERS: [&str; 6] = ["1", "2", "3", "r", "n", "o"];

/// The address of a server.
pub fn address(server: &str, family: IpFamily) -> String {
    let (four, six) = match server {
        "r" => ("10.2.0.9".to_owned(), "fd00:2::9".to_owned()),
        "n" => ("192.0.2.1".to_owned(), "fd00:9::1".to_owned()),
        "o" => ("192.0.2.2".to_owned(), "fd00:9::2".to_owned()),
        pod => (format!("10.1.0.{pod}"), format!("fd00:1::{pod}")),
    };
    match family {
        IpFamily::V4 => four,
        IpFamily::V6 => six,
    }
}

/// An endpoint, described by words: a server, then `unready`, `draining` (terminating and serving), `gone` (terminating and
/// not serving), `published` (terminating and ready), `nowhere` (no node name), `zone=z` and `node=n`.
pub fn endpoint(family: IpFamily, words: &str) -> Value {
    let mut words = words.split_whitespace();
    let server = words.next().unwrap();
    let node = if ["r", "o"].contains(&server) { "m" } else { "n" };
    let mut endpoint = json!({ "addresses": [address(server, family)], "nodeName": node, "conditions": {} });
    for word in words {
        let conditions = |ready: bool, serving: bool, terminating: bool| json!({ "ready": ready, "serving": serving, "terminating": terminating });
        match word.split_once('=') {
            Some(("zone", name)) => endpoint["hints"]["forZones"] = json!([{ "name": name }]),
            Some(("node", name)) => endpoint["hints"]["forNodes"] = json!([{ "name": name }]),
            Some(("on", name)) => endpoint["nodeName"] = name.into(),
            _ => match word {
                "nowhere" => drop(endpoint.as_object_mut().unwrap().remove("nodeName")),
                "ready" => endpoint["conditions"] = conditions(true, true, false),
                "unready" => endpoint["conditions"] = conditions(false, false, false),
                "draining" => endpoint["conditions"] = conditions(false, true, true),
                "gone" => endpoint["conditions"] = conditions(false, false, true),
                "published" => endpoint["conditions"] = conditions(true, true, true),
                other => panic!("{other}"),
            },
        }
    }
    endpoint
}

/// The slices of a Service, of both families, with these endpoints.
pub fn slices(service: &str, endpoints: &[&str]) -> Vec<Value> {
    let of_family = |family: &IpFamily| {
        let endpoints: Vec<Value> = endpoints.iter().map(|words| endpoint(*family, words)).collect();
        slice(service, "s", *family, 8080, &endpoints)
    };
    DUAL.iter().map(of_family).collect()
}
