//! Cluster IPs and NodePorts for Services whose files name none, as the API server allocates them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use podwire_ip::IpFamily;
use serde::{Deserialize, Serialize};
use serde_json::{json, Value};

use crate::{Error, Result};

/// The NodePorts that the API server allocates.
const NODE_PORTS: std::ops::RangeInclusive<u16> = 30000..=32767;
/// The first addresses stay free for Services that name theirs.
const FIRST: u16 = 10;

/// What a Service got.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Allocation {
    /// Empty if its file names them.
    cluster_ips: Vec<IpAddr>,
    /// By the index of the port in the file. Those that the file names are missing.
    node_ports: BTreeMap<usize, u16>,
}

/// The range of cluster IPs, as a ServiceCIDR.
pub(crate) fn service_cidr(families: &[IpFamily]) -> Value {
    let cidr = |family: &IpFamily| match family {
        IpFamily::V4 => "10.96.0.0/16",
        IpFamily::V6 => "fd00:96::/112",
    };
    let cidrs: Vec<&str> = families.iter().map(cidr).collect();
    json!({ "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": { "name": "kubernetes" }, "spec": { "cidrs": cidrs } })
}

fn cluster_ip(family: IpFamily, number: u16) -> IpAddr {
    match family {
        IpFamily::V4 => IpAddr::from([10, 96, (number >> 8) as u8, number as u8]),
        IpFamily::V6 => IpAddr::from([0xfd00, 0x96, 0, 0, 0, 0, 0, number]),
    }
}

/// What is taken.
#[derive(Default)]
struct Taken {
    ips: BTreeSet<IpAddr>,
    node_ports: BTreeSet<u16>,
}

impl Allocation {
    /// `namespace/name` of a Service.
    pub fn name(service: &Value) -> String {
        let text = |field: &str| service["metadata"][field].as_str().filter(|text| !text.is_empty());
        format!("{}/{}", text("namespace").unwrap_or("default"), text("name").unwrap_or_default())
    }

    /// The allocations for all Services among the objects. A Service keeps what it had before.
    pub fn of_all(
        objects: &[Value],
        before: &BTreeMap<String, Allocation>,
        families: &[IpFamily],
    ) -> Result<BTreeMap<String, Allocation>> {
        let services = || objects.iter().filter(|object| object["kind"] == "Service");
        let mut taken = Taken::default();
        for service in services() {
            taken.ips.extend(written_ips(service));
            taken.node_ports.extend(ports(service).iter().filter_map(node_port));
        }
        let mut all = BTreeMap::new();
        // First what is kept, so that a new Service does not get it.
        for service in services() {
            let name = Allocation::name(service);
            let kept = before.get(&name).map(|kept| kept.still_needed(service, &taken)).unwrap_or_default();
            taken.ips.extend(&kept.cluster_ips);
            taken.node_ports.extend(kept.node_ports.values());
            all.insert(name, kept);
        }
        for service in services() {
            let allocation = all.entry(Allocation::name(service)).or_default();
            allocation.complete(service, families, &mut taken)?;
        }
        Ok(all)
    }

    fn still_needed(&self, service: &Value, taken: &Taken) -> Allocation {
        let ips = self.cluster_ips.iter().filter(|ip| needs_ips(service) && !taken.ips.contains(ip));
        let ports = ports(service);
        let needs = |index: &usize| ports.get(*index).is_some_and(|port| node_port(port).is_none());
        let node_ports = self.node_ports.iter().filter(|(index, port)| {
            has_node_ports(service) && needs(index) && !taken.node_ports.contains(port)
        });
        Allocation {
            cluster_ips: ips.copied().collect(),
            node_ports: node_ports.map(|(index, port)| (*index, *port)).collect(),
        }
    }

    fn complete(&mut self, service: &Value, families: &[IpFamily], taken: &mut Taken) -> Result<()> {
        let name = Allocation::name(service);
        if needs_ips(service) {
            let wanted = wanted_families(service, families);
            self.cluster_ips.retain(|ip| wanted.contains(&IpFamily::of(*ip)));
            for family in wanted {
                if !self.cluster_ips.iter().any(|ip| IpFamily::of(*ip) == family) {
                    let mut free = (FIRST..u16::MAX).map(|number| cluster_ip(family, number));
                    let free = free.find(|ip| !taken.ips.contains(ip));
                    let ip = free.ok_or_else(|| exhausted(&name, "cluster IP"))?;
                    taken.ips.insert(ip);
                    self.cluster_ips.push(ip);
                }
            }
        }
        if has_node_ports(service) {
            for (index, port) in ports(service).iter().enumerate() {
                if node_port(port).is_none() && !self.node_ports.contains_key(&index) {
                    let free = NODE_PORTS.into_iter().find(|port| !taken.node_ports.contains(port));
                    let port = free.ok_or_else(|| exhausted(&name, "NodePort"))?;
                    taken.node_ports.insert(port);
                    self.node_ports.insert(index, port);
                }
            }
        }
        Ok(())
    }

    /// Writes it into the Service.
    pub fn write(&self, service: &mut Value) {
        if let Some(first) = self.cluster_ips.first() {
            service["spec"]["clusterIP"] = json!(first);
            service["spec"]["clusterIPs"] = json!(self.cluster_ips);
        }
        for (index, port) in &self.node_ports {
            service["spec"]["ports"][*index]["nodePort"] = json!(port);
        }
    }
}

fn exhausted(service: &str, what: &str) -> Error {
    Error::input(format!("Service {service}: no {what} is free"), "name one in the file")
}

/// The addresses that the file names, perhaps `None`.
fn written(service: &Value) -> Vec<&str> {
    let spec = &service["spec"];
    let all = spec["clusterIPs"].as_array().into_iter().flatten().filter_map(Value::as_str);
    all.chain(spec["clusterIP"].as_str()).filter(|text| !text.is_empty()).collect()
}

fn written_ips(service: &Value) -> impl Iterator<Item = IpAddr> + '_ {
    written(service).into_iter().filter_map(|text| text.parse().ok())
}

fn needs_ips(service: &Value) -> bool {
    written(service).is_empty() && service["spec"]["type"] != "ExternalName"
}

fn has_node_ports(service: &Value) -> bool {
    let spec = &service["spec"];
    spec["type"] == "NodePort"
        || (spec["type"] == "LoadBalancer" && spec["allocateLoadBalancerNodePorts"] != json!(false))
}

fn ports(service: &Value) -> &[Value] {
    service["spec"]["ports"].as_array().map_or(&[], Vec::as_slice)
}

fn node_port(port: &Value) -> Option<u16> {
    port["nodePort"].as_u64().and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0)
}

/// Those of `ipFamilies`; with a dual-stack policy all of the lab; otherwise its first.
fn wanted_families(service: &Value, families: &[IpFamily]) -> Vec<IpFamily> {
    let named = service["spec"]["ipFamilies"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let mut wanted: Vec<IpFamily> = named
        .filter_map(|name| IpFamily::ALL.into_iter().find(|family| family.name() == name))
        .filter(|family| families.contains(family))
        .collect();
    let is_dual =
        matches!(service["spec"]["ipFamilyPolicy"].as_str(), Some("PreferDualStack" | "RequireDualStack"));
    let more: &[IpFamily] = if is_dual { families } else { &families[..1] };
    if is_dual || wanted.is_empty() {
        for family in more {
            if !wanted.contains(family) {
                wanted.push(*family);
            }
        }
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(name: &str, spec: Value) -> Value {
        json!({ "kind": "Service", "metadata": { "name": name }, "spec": spec })
    }

    fn allocated(objects: &[Value], before: &BTreeMap<String, Allocation>) -> Vec<String> {
        let all = Allocation::of_all(objects, before, &IpFamily::ALL).unwrap();
        let text = |object: &Value| {
            let mut object = object.clone();
            all[&Allocation::name(&object)].write(&mut object);
            format!("{} {}", object["spec"]["clusterIPs"], object["spec"]["ports"][0]["nodePort"])
        };
        objects.iter().map(text).collect()
    }

    #[test]
    fn services_get_what_their_files_do_not_name() {
        let objects = [
            service("a", json!({ "ports": [{ "port": 80 }] })),
            service(
                "b",
                json!({ "type": "NodePort", "ports": [{ "port": 80 }], "ipFamilyPolicy": "PreferDualStack" }),
            ),
            service(
                "c",
                json!({ "type": "NodePort", "clusterIP": "10.96.0.10", "ports": [{ "port": 80, "nodePort": 30000 }] }),
            ),
            service("d", json!({ "clusterIP": "None" })),
            service("e", json!({ "type": "ExternalName" })),
            service("f", json!({ "ipFamilies": ["IPv6"] })),
        ];
        assert_eq!(
            allocated(&objects, &BTreeMap::new()),
            [
                "[\"10.96.0.11\"] null",
                "[\"10.96.0.12\",\"fd00:96::a\"] 30001",
                "null 30000",
                "null null",
                "null null",
                "[\"fd00:96::b\"] null",
            ]
        );
    }

    #[test]
    fn services_keep_what_they_have() {
        let one = |name: &str| service(name, json!({ "type": "NodePort", "ports": [{ "port": 80 }] }));
        let before = Allocation::of_all(&[one("b")], &BTreeMap::new(), &IpFamily::ALL).unwrap();
        let after = allocated(&[one("a"), one("b")], &before);
        assert_eq!(after, ["[\"10.96.0.11\"] 30001", "[\"10.96.0.10\"] 30000"]);
        // Its address is now in the file of another Service.
        let given = service("a", json!({ "clusterIP": "10.96.0.10" }));
        assert_eq!(allocated(&[given, one("b")], &before)[1], "[\"10.96.0.11\"] 30000");
    }
}
