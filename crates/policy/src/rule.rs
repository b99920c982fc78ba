//! Parsed policies: both APIs become one list of rules.

use std::fmt;

use ipnet::IpNet;

use crate::selector::Selector;
use crate::{Direction, Protocol};

/// The tiers, in the order in which they apply to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Tier {
    Admin,
    NetworkPolicy,
    Baseline,
}

impl Tier {
    /// All tiers.
    pub const ALL: [Tier; 3] = [Tier::Admin, Tier::NetworkPolicy, Tier::Baseline];
}

/// The action of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// The packet is accepted.
    Accept,
    /// The packet is dropped.
    Deny,
    /// The next tier decides.
    Pass,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The rule of a policy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    /// Kind and name: `NetworkPolicy shop/web`.
    pub policy: String,
    /// The list that contains the rule.
    pub direction: Direction,
    /// The index in that list.
    pub index: usize,
    /// The name of the rule; may be empty.
    pub name: String,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}[{}]", self.policy, self.direction, self.index)?;
        if !self.name.is_empty() {
            write!(f, " {:?}", self.name)?;
        }
        Ok(())
    }
}

/// A parsed policy.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Policy {
    /// Kind and name.
    pub object: String,
    pub tier: Tier,
    /// The order in its tier; the lowest comes first.
    pub priority: i64,
    /// The pods that it selects; `None` if the selector is invalid.
    pub subject: Option<Selection>,
    /// The rules of a direction; `None` if the policy does not apply to it.
    pub ingress: Option<Vec<Rule>>,
    pub egress: Option<Vec<Rule>>,
}

impl Policy {
    pub fn rules(&self, direction: Direction) -> Option<&[Rule]> {
        match direction {
            Direction::Ingress => self.ingress.as_deref(),
            Direction::Egress => self.egress.as_deref(),
        }
    }
}

/// Pods by namespace and labels.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Selection {
    pub namespaces: Namespaces,
    pub pods: Selector,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Namespaces {
    /// The namespace of this name.
    Named(String),
    /// The namespaces with these labels.
    Labelled(Selector),
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespaces {
            Namespaces::Named(name) => write!(f, "pods {} in namespace {name}", self.pods),
            Namespaces::Labelled(selector) => write!(f, "pods {} in namespaces {selector}", self.pods),
        }
    }
}

/// An action for packets from or to any of the peers at any of the ports.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rule {
    pub origin: Origin,
    pub action: Action,
    pub peers: Peers,
    pub ports: Ports,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Peers {
    Anyone,
    /// Any of these. With all lists empty it matches no packet.
    These {
        pods: Vec<Selection>,
        nodes: Vec<Selector>,
        networks: Vec<IpNet>,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Ports {
    /// Any packet, with or without ports.
    All,
    /// Any of these. With both lists empty it matches no packet.
    These { numbers: Vec<PortRange>, names: Vec<NamedPort> },
}

/// A range of ports of a protocol, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortRange {
    /// The protocol.
    pub protocol: Protocol,
    /// The first port.
    pub first: u16,
    /// The last port.
    pub last: u16,
}

/// A port by its name in the destination pod's containers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NamedPort {
    pub name: String,
    /// Only ports of this protocol; `None` means any.
    pub protocol: Option<Protocol>,
}
