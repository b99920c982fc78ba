//! The scenarios that are measured.

use std::net::Ipv4Addr;

use serde_json::{json, Value};

/// The first address that `host-local` gives in the scenarios' subnet; the gateway is the one before.
pub const FIRST_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 2);
/// The addresses of the scenarios' pods.
pub const SUBNET: &str = "10.88.0.0/16";

/// What is done over and over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Ask these plugins for their versions.
    Version(&'static [&'static str]),
    /// ADD and DEL of `host-local` alone, with this many leases there.
    HostLocal {
        /// Leases of others.
        taken: u32,
    },
    /// ADD and DEL of a pod.
    Attach(Network),
}

/// The scenarios' networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// A bridge that is the pods' gateway.
    Bridge,
    /// The same with masquerading, hairpin and two host ports a pod.
    Portmap,
    /// The same, but only the time of portmap itself counts: a bridge's own cost grows with its ports.
    PortmapAlone,
    /// A veth pair to the host, no bridge.
    Ptp,
}

/// Who does the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Actor {
    /// The Go plugins.
    Peer,
    /// Our plugins.
    Ours,
    /// Our plugins, run by our runtime in a process that is there already.
    Runtime,
    /// Our plugins, run by our hand tool.
    Tool,
    /// Our plugins for routed pods, whatever the others have, beside the owner of the node's blocks.
    Routed,
    /// The floor program.
    Floor,
}

/// One of those that are compared.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    /// Its name in tables.
    pub name: &'static str,
    /// Who.
    pub actor: Actor,
    /// Whether many pods are attached to its node beforehand.
    pub crowded: bool,
}

/// A comparison.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
    /// What is done.
    pub work: Work,
    /// How many pods at the same time.
    pub at_once: usize,
    /// How often, unless the command line says otherwise.
    pub ops: u32,
    /// Milliseconds of rest after every round. Deleting leaves the kernel work for some 20 to 40 ms; where no
    /// slow peer takes its turn in between, this keeps one variant's dust out of the other's clock.
    pub rest: u64,
    /// Who is compared; ratios in the table are to the first.
    pub variants: &'static [Variant],
}

const fn variant(name: &'static str, actor: Actor) -> Variant {
    Variant { name, actor, crowded: false }
}

const fn crowded(name: &'static str, actor: Actor) -> Variant {
    Variant { name, actor, crowded: true }
}

/// The key of a network, unknown to CNI, that names the only plugin whose time counts.
pub const COUNTED: &str = "bench.counted";

const PEER: Variant = variant("peer", Actor::Peer);
const OURS: Variant = variant("ours", Actor::Ours);
const RUNTIME: Variant = variant("runtime", Actor::Runtime);
const TOOL: Variant = variant("tool", Actor::Tool);
const FLOOR: Variant = variant("floor", Actor::Floor);
const ROUTED: Variant = variant("routed", Actor::Routed);
const BOTH: &[Variant] = &[PEER, OURS];
const GROWTH: &[Variant] = &[variant("ours-empty", Actor::Ours), crowded("ours-full", Actor::Ours)];
const GROWTH_BESIDE_PEER: &[Variant] = &[
    crowded("peer-full", Actor::Peer),
    crowded("ours-full", Actor::Ours),
    variant("ours-empty", Actor::Ours),
];

/// Every scenario, in the order in which they run.
pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "version",
        about: "VERSION: what starting a plugin costs (floor: an empty static Rust program)",
        work: Work::Version(&["bridge", "host-local", "portmap"]),
        at_once: 1,
        ops: 200,
        rest: 0,
        variants: &[PEER, OURS, FLOOR],
    },
    Scenario {
        name: "host-local-10",
        about: "host-local alone, 10 addresses taken",
        work: Work::HostLocal { taken: 10 },
        at_once: 1,
        ops: 200,
        rest: 0,
        variants: BOTH,
    },
    Scenario {
        name: "host-local-10000",
        about: "host-local alone, 10,000 addresses taken",
        work: Work::HostLocal { taken: 10_000 },
        at_once: 1,
        ops: 50,
        rest: 0,
        variants: BOTH,
    },
    Scenario {
        name: "bridge",
        about: "bridge (gateway) + host-local",
        work: Work::Attach(Network::Bridge),
        at_once: 1,
        ops: 200,
        rest: 0,
        variants: BOTH,
    },
    Scenario {
        name: "portmap",
        about: "bridge (gateway, masquerade, hairpin) + host-local + portmap (2 ports, snat)",
        work: Work::Attach(Network::Portmap),
        at_once: 1,
        ops: 60,
        rest: 100,
        variants: &[PEER, OURS, RUNTIME, TOOL],
    },
    Scenario {
        name: "parallel-bridge",
        about: "bridge (gateway) + host-local, 32 pods at once",
        work: Work::Attach(Network::Bridge),
        at_once: 32,
        ops: 512,
        rest: 300,
        variants: BOTH,
    },
    Scenario {
        name: "parallel-portmap",
        about: "the portmap chain, 32 pods at once",
        work: Work::Attach(Network::Portmap),
        at_once: 32,
        ops: 256,
        rest: 300,
        variants: BOTH,
    },
    Scenario {
        name: "growth-ptp",
        about: "ptp + host-local on an empty node and on a full one",
        work: Work::Attach(Network::Ptp),
        at_once: 1,
        ops: 100,
        rest: 60,
        variants: GROWTH,
    },
    Scenario {
        name: "growth-portmap",
        about: "portmap (2 ports, snat) behind a bridge, on an empty node and on a full one; portmap's time alone",
        work: Work::Attach(Network::PortmapAlone),
        at_once: 1,
        ops: 100,
        rest: 60,
        variants: GROWTH,
    },
    Scenario {
        name: "growth-bridge",
        about: "bridge (gateway) + host-local on an empty node and on full ones",
        work: Work::Attach(Network::Bridge),
        at_once: 1,
        ops: 100,
        rest: 60,
        variants: GROWTH_BESIDE_PEER,
    },
    Scenario {
        name: "floor",
        about: "bridge (gateway) + host-local against the kernel's own cost",
        work: Work::Attach(Network::Bridge),
        at_once: 1,
        ops: 200,
        rest: 60,
        variants: &[FLOOR, OURS],
    },
    Scenario {
        name: "routed",
        about: "calico + calico-ipam with the owner of the node's blocks, beside bridge (gateway) + host-local",
        work: Work::Attach(Network::Bridge),
        at_once: 1,
        ops: 200,
        rest: 60,
        variants: &[PEER, ROUTED, FLOOR],
    },
];

impl Actor {
    /// The network of its pods, where the scenario has this work.
    pub fn network(self, work: Work) -> Value {
        match self {
            Actor::Routed => {
                let plugin = json!({
                    "type": "calico", "mtu": 1500, "nodename": "bench",
                    "datastore_type": "sqlite", "ipam": {"type": "calico-ipam"},
                });
                json!({"cniVersion": "1.0.0", "name": "podwire-bench", "plugins": [plugin]})
            }
            _ => work.network(),
        }
    }
}

impl Work {
    /// The network as a CNI config list.
    pub fn network(self) -> Value {
        let ipam = json!({
            "type": "host-local",
            "ranges": [[{"subnet": SUBNET}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        });
        let plugins = match self {
            Work::Attach(Network::Ptp) => json!([{"type": "ptp", "ipam": ipam}]),
            Work::Attach(Network::Portmap | Network::PortmapAlone) => json!([
                {"type": "bridge", "bridge": "bench0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
                 "ipam": ipam},
                {"type": "portmap", "snat": true, "capabilities": {"portMappings": true}},
            ]),
            _ => json!([{"type": "bridge", "bridge": "bench0", "isGateway": true, "ipam": ipam}]),
        };
        let mut network = json!({"cniVersion": "1.0.0", "name": "podwire-bench", "plugins": plugins});
        if self == Work::Attach(Network::PortmapAlone) {
            network[COUNTED] = json!("portmap");
        }
        network
    }
}
