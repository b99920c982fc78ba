//! The program: the compiled policies, in terms of a kernel firewall.
//!
//! A pod has a [`Chain`] for each direction in which a policy selects it. A chain is a list of [`Stage`]s, at most one
//! for each tier. A stage is a list of rules, with a default outcome for packets that match none. Rules name
//! [sets](Program::addresses), and sets contain addresses.
//!
//! What changes often is separate from what changes rarely. When a pod is added, deleted or relabelled, set elements
//! change, and possibly the pod's chain: no rule does. Pods with the same policies share their chains,
//! and policies with the same selector share a set. An [`Id`] is a hash of the content, so two programs from
//! the same objects are equal, and two chains with the same id need no comparison.
//!
//! Accepted before any chain: replies and packets related to an accepted connection; packets from a pod to
//! itself; packets from a node to its own pods, because probes must reach them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use sha2::{Digest, Sha256};

pub use crate::rule::PortRange;
use crate::{Direction, Origin, Protocol};

/// The name of a chain, a stage or a set: a letter and a hash of the content. Clones share the text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(Arc<str>);

impl Id {
    /// The id of a text that describes the content.
    pub(crate) fn of(kind: char, text: &str) -> Id {
        let digest = Sha256::digest(text.as_bytes());
        let hex: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        Id(format!("{kind}{hex}").into())
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A whole program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// The pods, by `namespace/name`.
    pub endpoints: BTreeMap<String, Endpoint>,
    /// Lists of stages.
    pub chains: BTreeMap<Id, Chain>,
    /// Lists of rules.
    pub stages: BTreeMap<Id, Arc<Stage>>,
    /// The addresses of the pods or nodes that a selector selects.
    pub addresses: BTreeMap<Id, Arc<BTreeSet<IpAddr>>>,
    /// Networks that do not overlap.
    pub networks: BTreeMap<Id, Vec<IpNet>>,
    /// Ports that do not overlap.
    pub ports: BTreeMap<Id, Vec<PortRange>>,
    /// What a port name stands for: pod address, protocol, port.
    pub named_ports: BTreeMap<Id, BTreeSet<(IpAddr, Protocol, u16)>>,
    /// A text for each set of addresses or named ports.
    pub descriptions: BTreeMap<Id, String>,
}

/// A pod of the program, with its chains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoint {
    /// The pod addresses.
    pub addresses: Vec<IpAddr>,
    /// The addresses of the pod's node.
    pub node: Vec<IpAddr>,
    /// The chain for received packets; without one, all are accepted.
    pub ingress: Option<Id>,
    /// The chain for sent packets; without one, all are accepted.
    pub egress: Option<Id>,
}

impl Endpoint {
    /// The chain for a direction; `None` if no policy selects the pod in this direction.
    pub fn chain(&self, direction: Direction) -> Option<&Id> {
        match direction {
            Direction::Ingress => self.ingress.as_ref(),
            Direction::Egress => self.egress.as_ref(),
        }
    }
}

/// A list of stages: the first that accepts or drops decides; packets that no stage decides about are accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Whether the pod receives or sends the packets.
    pub direction: Direction,
    /// The stages in order.
    pub stages: Vec<Id>,
}

/// A list of rules: the first that matches decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// The rules in order.
    pub rules: Vec<Rule>,
    /// The outcome for packets that match no rule.
    pub default_outcome: Outcome,
    /// If these are dropped: the policies that isolate the pod, as kind and name.
    pub isolating_policies: Vec<String>,
}

/// The outcome of a stage for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// The packet is accepted for this direction.
    Accept,
    /// The packet is dropped without an error message.
    Drop,
    /// The next stage decides.
    Next,
}

/// A rule. It matches if both the peer and the port match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The other end.
    pub peer: Peer,
    /// The packet's destination port.
    pub port: Port,
    /// The outcome for matching packets.
    pub outcome: Outcome,
    /// The rule of a policy that it comes from; `None` for rules that every pod has.
    pub origin: Option<Origin>,
}

/// The other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Peer {
    /// Any address.
    Anyone,
    /// An address in a set of [`Program::addresses`].
    Addresses(Id),
    /// An address in a set of [`Program::networks`].
    Networks(Id),
    /// The pod's node.
    OwnNode,
}

/// The match on the transport header.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Port {
    /// Any packet, with or without ports.
    Any,
    /// Protocol and destination port are in a set of [`Program::ports`].
    Numbers(Id),
    /// Destination address, protocol and port are in a set of [`Program::named_ports`].
    Named(Id),
}
