//! The scenarios of the benchmark.

use std::net::Ipv4Addr;

use serde_json::{json, Value};

/// The first address that `host-local` allocates in the scenarios' subnet, after the gateway's.
pub const FIRST_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 2);
/// The pods' subnet.
pub const SUBNET: &str = "10.88.0.0/16";

/// The measured operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// VERSION of these plugins.
    Version(&'static [&'static str]),
    /// ADD and DEL of `host-local` alone.
    HostLocal {
        /// Leases that exist before.
        existing: u32,
    },
    /// ADD and DEL of a pod.
    Attach(Network),
}

/// The scenarios' networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// A bridge that is the pods' gateway.
    Bridge,
    /// The same with masquerading, hairpin and two host ports for each pod.
    Portmap,
    /// The same, but only portmap's own time counts: the cost of a bridge grows with its ports.
    PortmapAlone,
    /// A veth pair to the host, no bridge.
    Ptp,
}

/// The programs that do the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Actor {
    /// The Go plugins.
    Peer,
    /// Podwire's plugins.
    Ours,
    /// Podwire's plugins and runtime library, in the worker's process.
    Runtime,
    /// Podwire's plugins, executed by `podwire cni`.
    Tool,
    /// calico and calico-ipam in place of the scenario's network, with `podwire ipam serve` on the node.
    Routed,
    /// The floor program.
    Floor,
}

/// One side of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    /// Its name in tables.
    pub name: &'static str,
    /// What it runs.
    pub actor: Actor,
    /// Whether its node is full of pods before the measurement.
    pub full: bool,
}

/// A comparison.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it measures, in one line.
    pub about: &'static str,
    /// The measured operation.
    pub work: Work,
    /// How many pods at the same time.
    pub at_once: usize,
    /// The default number of operations.
    pub ops: u32,
    /// Milliseconds of rest after every operation or block. Deleting leaves the kernel work for 20 to 40 ms. Without a
    /// slow peer's turn in between, the next variant's time would include that work.
    pub rest: u64,
    /// The variants. Ratios in the table are relative to the first.
    pub variants: &'static [Variant],
}

const fn variant(name: &'static str, actor: Actor) -> Variant {
    Variant { name, actor, full: false }
}

const fn full(name: &'static str, actor: Actor) -> Variant {
    Variant { name, actor, full: true }
}

/// A key in a network's config that names the only plugin whose time counts. CNI ignores it.
pub const COUNTED: &str = "bench.counted";

const PEER: Variant = variant("peer", Actor::Peer);
const OURS: Variant = variant("ours", Actor::Ours);
const RUNTIME: Variant = variant("runtime", Actor::Runtime);
const TOOL: Variant = variant("tool", Actor::Tool);
const FLOOR: Variant = variant("floor", Actor::Floor);
const ROUTED: Variant = variant("routed", Actor::Routed);
const BOTH: &[Variant] = &[PEER, OURS];
const GROWTH: &[Variant] = &[variant("ours-empty", Actor::Ours), full("ours-full", Actor::Ours)];
const GROWTH_BESIDE_PEER: &[Variant] =
    &[full("peer-full", Actor::Peer), full("ours-full", Actor::Ours), variant("ours-empty", Actor::Ours)];

/// Every scenario, in the order in which they run.
pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "version",
        about: "VERSION: the cost of starting a plugin (floor: a minimal static Rust program)",
        work: Work::Version(&["bridge", "host-local", "portmap"]),
        at_once: 1,
        ops: 200,
        rest: 0,
        variants: &[PEER, OURS, FLOOR],
    },
    Scenario {
        name: "host-local-10",
        about: "host-local alone, with 10 existing leases",
        work: Work::HostLocal { existing: 10 },
        at_once: 1,
        ops: 200,
        rest: 0,
        variants: BOTH,
    },
    Scenario {
        name: "host-local-10000",
        about: "host-local alone, with 10,000 existing leases",
        work: Work::HostLocal { existing: 10_000 },
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
        about: "portmap (2 ports, snat) after a bridge, on an empty node and on a full one; only portmap's time",
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
        about: "bridge (gateway) + host-local compared with the kernel's own cost",
        work: Work::Attach(Network::Bridge),
        at_once: 1,
        ops: 200,
        rest: 60,
        variants: &[FLOOR, OURS],
    },
    Scenario {
        name: "routed",
        about: "calico + calico-ipam with the node's block allocator, compared with bridge (gateway) + host-local",
        work: Work::Attach(Network::Bridge),
        at_once: 1,
        ops: 200,
        rest: 60,
        variants: &[PEER, ROUTED, FLOOR],
    },
];

impl Actor {
    /// The network of its pods in a scenario with this work.
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
