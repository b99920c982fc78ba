//! EndpointSlices for Services with a selector, as the controller of a cluster makes them. A Service that has slices in the
//! files gets no others.

use std::collections::BTreeMap;
use std::net::IpAddr;

use podwire_ip::IpFamily;
use podwire_policy::api::{Pod, PodIp};
use podwire_policy::Protocol;
use serde_json::{json, Value};

use crate::service_addresses::Allocation;

const SERVICE_NAME: &str = "kubernetes.io/service-name";
const ZONE: &str = "topology.kubernetes.io/zone";

/// What slices depend on.
pub(crate) struct Cluster<'a> {
    /// The pods of the files.
    pub pods: &'a [Pod],
    /// Node objects.
    pub nodes: &'a [Value],
    /// The node of each pod, by `namespace/name`.
    pub pod_nodes: &'a BTreeMap<String, String>,
    /// The addresses of each pod; a pod that does not run has none.
    pub addresses: &'a BTreeMap<String, Vec<PodIp>>,
    pub families: &'a [IpFamily],
}

/// A port of a slice: name, protocol and number.
type SlicePort = (String, Protocol, u16);

/// What all endpoints of a slice have in common.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct SliceKey {
    family: IpFamily,
    ports: Vec<SlicePort>,
}

/// The slices of a Service: of each family, one for all pods with the same port numbers.
pub(crate) fn slices(service: &Value, given: &[Value], cluster: &Cluster<'_>) -> Vec<Value> {
    let full_name = Allocation::name(service);
    let (namespace, name) = full_name.split_once('/').unwrap_or_default();
    let has_slices = given.iter().any(|slice| {
        slice["metadata"]["labels"][SERVICE_NAME] == name
            && slice["metadata"]["namespace"].as_str().unwrap_or("default") == namespace
    });
    let Some(selector) = service["spec"]["selector"].as_object().filter(|one| !one.is_empty()) else {
        return Vec::new();
    };
    if has_slices {
        return Vec::new();
    }
    let is_selected = |pod: &&Pod| {
        let labels = &pod.metadata.labels;
        let has = |(key, value): (&String, &Value)| labels.get(key).map(String::as_str) == value.as_str();
        pod.metadata.namespace == namespace && selector.iter().all(has)
    };
    let mut endpoints: BTreeMap<SliceKey, Vec<Value>> = BTreeMap::new();
    for pod in cluster.pods.iter().filter(is_selected) {
        let ports = ports(service, pod);
        for family in cluster.families {
            let ips = cluster.addresses.get(&pod.full_name()).into_iter().flatten();
            if let Some(ip) = ips.map(|one| one.ip).find(|ip| IpFamily::of(*ip) == *family) {
                let endpoint = cluster.endpoint(service, pod, ip);
                let key = SliceKey { family: *family, ports: ports.clone() };
                endpoints.entry(key).or_default().push(endpoint);
            }
        }
    }
    let slice = |(number, (key, endpoints)): (usize, (SliceKey, Vec<Value>))| {
        let port =
            |(name, protocol, port): &SlicePort| json!({ "name": name, "protocol": protocol, "port": port });
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "namespace": namespace,
                "name": format!("{name}-lab{number}"),
                "labels": { SERVICE_NAME: name },
            },
            "addressType": key.family.name(),
            "ports": key.ports.iter().map(port).collect::<Vec<_>>(),
            "endpoints": endpoints,
        })
    };
    endpoints.into_iter().enumerate().map(slice).collect()
}

/// The ports of a Service at a pod. A named target port that the pod does not have is left out.
fn ports(service: &Value, pod: &Pod) -> Vec<SlicePort> {
    let one = |port: &Value| {
        let protocol = Protocol::named(port["protocol"].as_str().unwrap_or("TCP"))?;
        let number = match &port["targetPort"] {
            Value::String(name) => pod.named_ports(name).find(|(of, _)| *of == protocol)?.1,
            Value::Null => u16::try_from(port["port"].as_u64()?).ok()?,
            number => u16::try_from(number.as_u64()?).ok()?,
        };
        Some((port["name"].as_str().unwrap_or_default().to_owned(), protocol, number))
    };
    service["spec"]["ports"].as_array().into_iter().flatten().filter_map(one).collect()
}

impl Cluster<'_> {
    fn endpoint(&self, service: &Value, pod: &Pod, ip: IpAddr) -> Value {
        let node = self.pod_nodes.get(&pod.full_name());
        let mut endpoint = json!({
            "addresses": [ip],
            "conditions": { "ready": true, "serving": true, "terminating": false },
            "targetRef": { "kind": "Pod", "namespace": pod.metadata.namespace, "name": pod.metadata.name },
        });
        let Some(node) = node else { return endpoint };
        endpoint["nodeName"] = json!(node);
        let distribution = service["spec"]["trafficDistribution"].as_str().unwrap_or_default();
        if let (false, Some(zone)) = (distribution.is_empty(), self.zone(node)) {
            endpoint["hints"]["forZones"] = json!([{ "name": zone }]);
        }
        if distribution == "PreferSameNode" {
            endpoint["hints"]["forNodes"] = json!([{ "name": node }]);
        }
        endpoint
    }

    fn zone(&self, node: &str) -> Option<&str> {
        let object = self.nodes.iter().find(|object| object["metadata"]["name"] == node)?;
        object["metadata"]["labels"][ZONE].as_str()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pod `x/NAME` with the label `app: web` and a port named `http`.
    fn pod(name: &str, port: u16) -> Pod {
        let pod = json!({
            "metadata": { "namespace": "x", "name": name, "labels": { "app": "web", "more": "yes" } },
            "spec": { "containers": [{ "ports": [{ "name": "http", "containerPort": port }] }] },
        });
        serde_json::from_value(pod).unwrap()
    }

    fn made(spec: Value, given: &[Value]) -> Vec<Value> {
        let service = json!({ "metadata": { "namespace": "x", "name": "web" }, "spec": spec });
        let ip = |text: &str| PodIp { ip: text.parse().unwrap() };
        let addresses = [
            ("x/a", vec![ip("10.0.0.1"), ip("fd00::1")]),
            ("x/b", vec![ip("10.0.0.2")]),
            ("x/c", vec![ip("10.0.0.3")]),
        ];
        let node = json!({ "metadata": { "name": "n1", "labels": { ZONE: "z" } } });
        let cluster = Cluster {
            pods: &[pod("a", 8080), pod("b", 8080), pod("c", 9090), pod("d", 8080)],
            nodes: &[node],
            pod_nodes: &BTreeMap::from([("x/a".to_owned(), "n1".to_owned())]),
            addresses: &addresses.into_iter().map(|(name, ips)| (name.to_owned(), ips)).collect(),
            families: &IpFamily::ALL,
        };
        slices(&service, given, &cluster)
    }

    fn text(slices: &[Value]) -> Vec<String> {
        let one = |slice: &Value| {
            let ips = slice["endpoints"]
                .as_array()
                .unwrap()
                .iter()
                .map(|one| one["addresses"][0].as_str().unwrap());
            let port = &slice["ports"][0];
            format!("{} {} {}", slice["addressType"], port["port"], ips.collect::<Vec<_>>().join(","))
        };
        slices.iter().map(one).collect()
    }

    #[test]
    fn slices_have_the_pods_that_the_selector_selects() {
        let named = |selector: Value| json!({ "selector": selector, "ports": [{ "port": 80, "targetPort": "http" }] });
        assert_eq!(
            text(&made(named(json!({ "app": "web" })), &[])),
            ["\"IPv4\" 8080 10.0.0.1,10.0.0.2", "\"IPv4\" 9090 10.0.0.3", "\"IPv6\" 8080 fd00::1"]
        );
        let number = json!({ "selector": { "app": "web" }, "ports": [{ "port": 80 }] });
        assert_eq!(text(&made(number, &[]))[0], "\"IPv4\" 80 10.0.0.1,10.0.0.2,10.0.0.3");
        for selector in
            [json!({ "app": "other" }), json!({ "app": "web", "more": "no" }), json!({}), json!(null)]
        {
            assert_eq!(text(&made(named(selector.clone()), &[])), [""; 0], "{selector}");
        }
        let given = json!({ "metadata": { "namespace": "x", "labels": { SERVICE_NAME: "web" } } });
        assert_eq!(text(&made(named(json!({ "app": "web" })), &[given])), [""; 0]);
    }

    #[test]
    fn slices_have_nodes_and_hints() {
        let spec = |distribution: &str| json!({ "selector": { "app": "web" }, "ports": [{ "port": 80 }], "trafficDistribution": distribution });
        let first = |distribution: &str| made(spec(distribution), &[])[0]["endpoints"][0].clone();
        assert_eq!(first("")["nodeName"], "n1");
        assert_eq!(first("")["hints"], Value::Null);
        assert_eq!(first("PreferSameZone")["hints"], json!({ "forZones": [{ "name": "z" }] }));
        assert_eq!(first("PreferSameNode")["hints"]["forNodes"][0]["name"], "n1");
    }
}
