//! Configs and arguments that make an ADD fail.

use serde_json::{json, Value};

use crate::networks::{port, Network};

/// Why an ADD fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddFailure {
    /// The second pool of the network has no free address.
    FullPool,
    /// A route has an unreachable gateway.
    BadRoute,
    /// Another attachment, with this number, has the port.
    TakenPort(usize),
    /// The pod has an interface of that name.
    TakenName,
    /// The namespace does not exist.
    NoNamespace,
}

impl AddFailure {
    /// Whether the networks' plugins fail for this reason.
    pub fn applies_to(self, network: &Network) -> bool {
        let chain = network.chain(0);
        let pooled = chain[0]["ipam"]["type"] == "host-local";
        match self {
            AddFailure::FullPool => pooled,
            // calico sets its own routes, whatever the config has.
            AddFailure::BadRoute => pooled && network.makes_link && chain[0]["type"] != "calico",
            AddFailure::TakenPort(_) => chain.iter().any(|one| one["type"] == "portmap"),
            AddFailure::TakenName => network.makes_link,
            // host-local allocates an address without a namespace.
            AddFailure::NoNamespace => network.name != "pool",
        }
    }

    /// Changes the configs of a chain so that ADD fails.
    pub fn apply(self, chain: &mut [Value]) {
        match self {
            AddFailure::FullPool => {
                // The only address of the range is the gateway's.
                let one = json!([{"subnet": "fd99::/64", "rangeStart": "fd99::1", "rangeEnd": "fd99::1"}]);
                chain[0]["ipam"]["ranges"][1] = one;
            }
            AddFailure::BadRoute => {
                chain[0]["ipam"]["routes"] = json!([{"dst": "198.51.100.0/24", "gw": "203.0.113.1"}]);
            }
            AddFailure::TakenPort(number) => {
                let ports = &mut chain[1]["runtimeConfig"]["portMappings"];
                ports[1]["hostPort"] = json!(port(number));
            }
            AddFailure::TakenName | AddFailure::NoNamespace => {}
        }
    }
}
