//! Policies after reading: what was written in two languages becomes one list of rules.

use std::fmt;

use ipnet::IpNet;

use crate::selector::Selector;
use crate::{Direction, Protocol};

/// The tiers, in the order in which a packet meets them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Tier {
    Admin,
    NetworkPolicy,
    Baseline,
}

impl Tier {
    /// All of them.
    pub const ALL: [Tier; 3] = [Tier::Admin, Tier::NetworkPolicy, Tier::Baseline];
}

/// What a rule does with what it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// It passes.
    Accept,
    /// It is dropped.
    Deny,
    /// The next tier decides.
    Pass,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Which rule of which policy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    /// Kind and name: `NetworkPolicy shop/web`.
    pub policy: String,
    /// In which of its lists.
    pub direction: Direction,
    /// Its place in that list.
    pub index: usize,
    /// Its name, if it has one.
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

/// A policy that was read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Policy {
    /// Kind and name.
    pub object: String,
    pub tier: Tier,
    /// Its place in its tier.
    pub priority: i64,
    /// The pods that it is about; `None` if nobody can tell.
    pub subject: Option<Selection>,
    /// Rules for a direction, if the policy says anything about that direction.
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

/// Pods, by their namespace and their labels.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Selection {
    pub namespaces: Namespaces,
    pub pods: Selector,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Namespaces {
    /// The one of this name.
    Named(String),
    /// Those with these labels.
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

/// One rule: an action for what comes from, or goes to, any of its peers at any of its ports.
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
    /// Any of these; with all lists empty, nobody.
    These {
        pods: Vec<Selection>,
        nodes: Vec<Selector>,
        networks: Vec<IpNet>,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Ports {
    /// All traffic, with ports and without.
    All,
    /// Any of these; with both lists empty, none.
    These { numbers: Vec<PortRange>, names: Vec<NamedPort> },
}

/// Ports of a protocol, from one to another, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortRange {
    /// The protocol.
    pub protocol: Protocol,
    /// The first port.
    pub first: u16,
    /// The last port.
    pub last: u16,
}

/// A port by the name that the destination's containers give it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NamedPort {
    pub name: String,
    /// Of this protocol only.
    pub protocol: Option<Protocol>,
}
