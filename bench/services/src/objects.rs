//! The objects of the simulated cluster: Services with ten endpoints each, at addresses that answer.

use std::net::Ipv4Addr;

use serde_json::{json, Value};

/// The endpoints of a Service.
pub const ENDPOINTS: u32 = 10;
/// The port of all Services.
pub const PORT: u16 = 80;
pub const SERVICES: &str = "/api/v1/services";
pub const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
pub const SERVICE_CIDRS: &str = "/apis/networking.k8s.io/v1/servicecidrs";

/// The port of an endpoint. Its answer tells which of the two it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointPort {
    A,
    B,
}

impl EndpointPort {
    pub const ALL: [EndpointPort; 2] = [EndpointPort::A, EndpointPort::B];

    pub fn number(self) -> u16 {
        match self {
            EndpointPort::A => 8080,
            EndpointPort::B => 8081,
        }
    }

    /// The byte that a server at this port sends.
    pub fn answer(self) -> u8 {
        match self {
            EndpointPort::A => b'a',
            EndpointPort::B => b'b',
        }
    }

    pub fn other(self) -> EndpointPort {
        match self {
            EndpointPort::A => EndpointPort::B,
            EndpointPort::B => EndpointPort::A,
        }
    }
}

/// A Service, by its number.
#[derive(Clone, Copy, Debug)]
pub struct Service(pub u32);

impl Service {
    /// Its cluster IP, from 10.96.0.0/12.
    pub fn ip(self) -> Ipv4Addr {
        Ipv4Addr::from(0x0a60_0001 + self.0)
    }

    /// The address of one of its endpoints, from 11.0.0.0/8.
    fn endpoint(self, index: u32) -> Ipv4Addr {
        Ipv4Addr::from(0x0b00_0001 + self.0 * 256 + index)
    }

    fn name(self) -> String {
        format!("service-{:05}", self.0)
    }

    pub fn object(self) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"namespace": "bench", "name": self.name(), "uid": format!("uid-{}", self.name())},
            "spec": {
                "type": "ClusterIP", "clusterIP": self.ip(), "clusterIPs": [self.ip()], "ipFamilies": ["IPv4"],
                "sessionAffinity": "None", "internalTrafficPolicy": "Cluster", "selector": {"app": self.name()},
                "ports": [{"port": PORT, "protocol": "TCP", "targetPort": EndpointPort::A.number()}],
            },
        })
    }

    /// Its EndpointSlice with the endpoints of these numbers.
    pub fn slice(self, endpoints: impl Iterator<Item = u32>, port: EndpointPort) -> Value {
        let endpoint = |index: u32| {
            let pod = format!("{}-{index}", self.name());
            json!({
                "addresses": [self.endpoint(index)], "nodeName": "other",
                "conditions": {"ready": true, "serving": true, "terminating": false},
                "targetRef": {"kind": "Pod", "namespace": "bench", "name": pod, "uid": format!("uid-{pod}")},
            })
        };
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {
                "namespace": "bench", "name": self.name(), "uid": format!("uid-slice-{}", self.name()),
                "labels": {"kubernetes.io/service-name": self.name(),
                    "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"},
            },
            "ports": [{"name": "", "port": port.number(), "protocol": "TCP"}],
            "endpoints": endpoints.map(endpoint).collect::<Vec<_>>(),
        })
    }
}

/// The network of all cluster IPs.
pub fn service_cidr() -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": {"name": "kubernetes", "uid": "uid-cidr"}, "spec": {"cidrs": ["10.96.0.0/12"]},
    })
}
