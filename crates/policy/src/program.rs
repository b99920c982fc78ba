//! The program: what a data plane must do, in terms that a kernel has.
//!
//! A pod has a [`Chain`] for each direction in which any policy is about it. A chain is a walk through at most three
//! [`Stage`]s, one for each tier; a stage is a list of rules, and what happens to a packet that none of them matched. Rules
//! name [sets](Program::addresses), and sets hold addresses.
//!
//! What changes often is kept apart from what changes rarely. When a pod comes, goes or gets another label, elements
//! of sets change, and perhaps which chain the pod has: no rule does. Pods with the same policies have the same chains,
//! and policies with the same selector the same set. Names are made from what they name ([`Id`]), so two programs from
//! the same objects are equal, and a chain whose name is known need not be compared.
//!
//! Before any chain is asked, these pass: replies and what is related to a connection that passed; what a pod sends to
//! itself; what a node sends to its own pods, since probes must reach them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use sha2::{Digest, Sha256};

pub use crate::rule::PortRange;
use crate::{Direction, Origin, Protocol};

/// The name of a chain, a stage or a set: a letter and a hash of what it stands for. Many name the same thing, so the text is shared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(Arc<str>);

impl Id {
    /// A name made from a text.
    pub(crate) fn of(kind: char, text: &str) -> Id {
        let digest = Sha256::digest(text.as_bytes());
        let hex: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        Id(format!("{kind}{hex}").into())
    }

    /// The name.
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
    /// Walks through stages.
    pub chains: BTreeMap<Id, Chain>,
    /// Lists of rules.
    pub stages: BTreeMap<Id, Arc<Stage>>,
    /// Addresses of the pods or nodes that a selector selects.
    pub addresses: BTreeMap<Id, Arc<BTreeSet<IpAddr>>>,
    /// Networks that do not overlap.
    pub networks: BTreeMap<Id, Vec<IpNet>>,
    /// Ports that do not overlap.
    pub ports: BTreeMap<Id, Vec<PortRange>>,
    /// Where a port's name leads: address of a pod, protocol, port.
    pub named_ports: BTreeMap<Id, BTreeSet<(IpAddr, Protocol, u16)>>,
    /// What each set of addresses, or of ports with a name, stands for, in words.
    pub meanings: BTreeMap<Id, String>,
}

/// A pod as a data plane knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoint {
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// The addresses of the node where it runs.
    pub node: Vec<IpAddr>,
    /// The chain for what it receives; without one, all passes.
    pub ingress: Option<Id>,
    /// The chain for what it sends.
    pub egress: Option<Id>,
}

impl Endpoint {
    /// The chain for a direction.
    pub fn chain(&self, direction: Direction) -> Option<&Id> {
        match direction {
            Direction::Ingress => self.ingress.as_ref(),
            Direction::Egress => self.egress.as_ref(),
        }
    }
}

/// A walk through stages: the first that ends it decides, and behind the last all passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Which of a packet's ends are the pod's.
    pub direction: Direction,
    /// In their order.
    pub stages: Vec<Id>,
}

/// A list of rules: the first that matches decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// The rules, in their order.
    pub rules: Vec<Rule>,
    /// For packets that no rule matched.
    pub otherwise: Outcome,
    /// The policies because of which these are dropped: kind and name.
    pub isolating: Vec<String>,
}

/// What becomes of a packet in a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// It passes, as far as this direction goes.
    Accept,
    /// It vanishes without a word.
    Drop,
    /// The next stage decides.
    Next,
}

/// One rule: it matches if the peer and the port do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Who is at the other end.
    pub peer: Peer,
    /// The packet's destination port.
    pub port: Port,
    /// What becomes of the packet.
    pub outcome: Outcome,
    /// Whose rule it is; `None` for those that no policy contains.
    pub origin: Option<Origin>,
}

/// Who is at the other end.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Peer {
    /// Anybody.
    Anyone,
    /// One of [`Program::addresses`].
    Addresses(Id),
    /// Somebody in one of [`Program::networks`].
    Networks(Id),
    /// The node where the pod runs.
    OwnNode,
}

/// What is looked at in the transport header.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Port {
    /// Nothing.
    Any,
    /// Whether protocol and destination port are among [`Program::ports`].
    Numbers(Id),
    /// Whether destination, protocol and destination port are among [`Program::named_ports`].
    Named(Id),
}
