//! Ways to make an ADD fail.

use serde_json::{json, Value};

use crate::networks::{port, Network};

/// Why an ADD fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoil {
    /// The second pool of the network has no free address.
    FullPool,
    /// A route leads through a gateway that cannot be reached.
    BadRoute,
    /// Another attachment, with this number, has the port.
    TakenPort(usize),
    /// The pod has an interface of that name.
    TakenName,
    /// There is no such namespace.
    NoNamespace,
}

impl Spoil {
    /// Whether it can be done to a network.
    pub fn suits(self, network: &Network) -> bool {
        let chain = network.chain(0);
        let pooled = chain[0]["ipam"]["type"] == "host-local";
        match self {
            Spoil::FullPool => pooled,
            // Routes of pods are the plugin's own for calico.
            Spoil::BadRoute => pooled && network.makes_link && chain[0]["type"] != "calico",
            Spoil::TakenPort(_) => chain.iter().any(|one| one["type"] == "portmap"),
            Spoil::TakenName => network.makes_link,
            // Addresses can be had without a namespace.
            Spoil::NoNamespace => network.name != "pool",
        }
    }

    /// The chain, spoiled.
    pub fn apply(self, chain: &mut [Value]) {
        match self {
            Spoil::FullPool => {
                // The gateway's is the only address, and not for pods.
                let one = json!([{"subnet": "fd99::/64", "rangeStart": "fd99::1", "rangeEnd": "fd99::1"}]);
                chain[0]["ipam"]["ranges"][1] = one;
            }
            Spoil::BadRoute => {
                chain[0]["ipam"]["routes"] = json!([{"dst": "198.51.100.0/24", "gw": "203.0.113.1"}]);
            }
            Spoil::TakenPort(number) => {
                let ports = &mut chain[1]["runtimeConfig"]["portMappings"];
                ports[1]["hostPort"] = json!(port(number));
            }
            Spoil::TakenName | Spoil::NoNamespace => {}
        }
    }
}
