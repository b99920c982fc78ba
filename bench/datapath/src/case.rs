//! What is measured: a path of packets, on a network.

use clap::ValueEnum;
use serde::Serialize;

use crate::traffic::Ends;

/// How pods are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// The kernel alone, without a firewall.
    Raw,
    /// Debian's Go plugins: bridge with ipMasq, portmap, firewall.
    Go,
    /// The same chain of Podwire's plugins.
    Ours,
    /// A lab with the flannel plugin, which attaches pods to a bridge.
    Flannel,
    /// A lab with the ptp plugin.
    Ptp,
    /// A lab with the calico plugin.
    Calico,
}

impl Network {
    /// Its name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Network::Raw => "kernel alone",
            Network::Go => "Go plugins",
            Network::Ours => "our plugins",
            Network::Flannel => "flannel (bridge)",
            Network::Ptp => "ptp",
            Network::Calico => "calico",
        }
    }

    /// The path between nodes that a lab has, if none is chosen.
    pub fn between_nodes(self) -> Path {
        if self == Network::Ptp {
            Path::Direct
        } else {
            Path::Vxlan
        }
    }
}

/// From where to where packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Path {
    /// Pod to pod on one node.
    SameNode,
    /// Node to its pod.
    FromNode,
    /// Pod to a machine outside of the cluster, masqueraded.
    Outside,
    /// A machine outside of the cluster to a host port of a pod.
    HostPort,
    /// Pod to pod on two nodes, through VXLAN.
    Vxlan,
    /// Pod to pod on two nodes, with direct routes.
    Direct,
    /// Node to node; only measured for the kernel alone.
    #[value(skip)]
    Nodes,
}

impl Path {
    /// All paths, in the order of the report.
    pub const ALL: [Path; 7] = [
        Path::Nodes,
        Path::SameNode,
        Path::FromNode,
        Path::Outside,
        Path::HostPort,
        Path::Vxlan,
        Path::Direct,
    ];

    /// Its name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Path::SameNode => "pod to pod on one node",
            Path::FromNode => "node to pod",
            Path::Outside => "pod to outside, masqueraded",
            Path::HostPort => "outside to host port",
            Path::Vxlan => "pod to pod on two nodes, VXLAN",
            Path::Direct => "pod to pod on two nodes, direct routes",
            Path::Nodes => "node to node",
        }
    }

    /// The path of the kernel alone that it is compared with.
    pub fn raw(self) -> Path {
        match self {
            Path::Vxlan | Path::Direct => self,
            _ => Path::SameNode,
        }
    }

    /// What the kernel alone has on this path.
    pub fn raw_name(self) -> &'static str {
        match self.raw() {
            Path::Vxlan => "the same path without rules, with a VXLAN device on each node",
            Path::Direct => "the same path without rules",
            _ => "a bare veth pair",
        }
    }

    /// The lab's backend, for a path between nodes.
    pub fn backend(self) -> &'static str {
        if self == Path::Direct {
            "host-gw"
        } else {
            "vxlan"
        }
    }
}

/// What is measured on each path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// A byte there and a byte back, on one connection; both ends on one CPU. Microseconds.
    RoundTrip,
    /// Connect, a byte there and a byte back, close; both ends on one CPU. Microseconds.
    Connection,
    /// One stream. Gigabits per second.
    Stream,
    /// Eight streams at once. Gigabits per second.
    Streams,
    /// Processor time for each gigabyte of one stream. Seconds; measured with `stream`.
    #[value(skip)]
    Cpu,
}

impl Measure {
    /// All measures, in the order of the columns.
    pub const ALL: [Measure; 5] =
        [Measure::RoundTrip, Measure::Connection, Measure::Stream, Measure::Streams, Measure::Cpu];

    /// Its column.
    pub fn name(self) -> &'static str {
        match self {
            Measure::RoundTrip => "round trip",
            Measure::Connection => "connection",
            Measure::Stream => "1 stream",
            Measure::Streams => "8 streams",
            Measure::Cpu => "CPU / GB",
        }
    }

    /// Its unit.
    pub fn unit(self) -> &'static str {
        match self {
            Measure::RoundTrip | Measure::Connection => "µs",
            Measure::Stream | Measure::Streams => "Gbit/s",
            Measure::Cpu => "s",
        }
    }
}

/// A path on a network.
pub struct Case {
    pub network: Network,
    pub setup: Setup,
    pub path: Path,
    pub ends: Ends,
}

impl Case {
    /// The network and its policies.
    pub fn name(&self) -> String {
        subject(self.network, self.setup)
    }
}

/// What the agents do for the measured pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Setup {
    /// Policies about the pods.
    pub policies: usize,
    /// Whether accepted connections may take the fast path.
    pub fast_path: bool,
}

impl Setup {
    /// Neither policies nor the fast path.
    pub const NONE: Setup = Setup::policies(0);

    /// So many policies, enforced by nftables alone.
    pub const fn policies(policies: usize) -> Setup {
        Setup { policies, fast_path: false }
    }

    /// One policy and the fast path.
    pub const FAST: Setup = Setup { policies: 1, fast_path: true };
}

/// The name of a network with this setup.
pub fn subject(network: Network, setup: Setup) -> String {
    let name = match setup.policies {
        0 => network.name().into(),
        1 => format!("{}, 1 policy", network.name()),
        many => format!("{}, {many} policies", network.name()),
    };
    match setup.fast_path {
        true => format!("{name}, fast path"),
        false => name,
    }
}
