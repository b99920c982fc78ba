//! The owner of a block.

use std::fmt;

/// A node, or a virtual owner such as a load balancer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AffinityOwner {
    /// A node, by its name.
    Host(String),
    /// A virtual owner, by its name.
    Virtual(String),
}

impl AffinityOwner {
    /// A node.
    pub fn host(name: impl Into<String>) -> AffinityOwner {
        AffinityOwner::Host(name.into())
    }

    /// The name.
    pub fn name(&self) -> &str {
        match self {
            AffinityOwner::Host(name) | AffinityOwner::Virtual(name) => name,
        }
    }

    /// Parses `host:node1`.
    pub fn parse(text: &str) -> Option<AffinityOwner> {
        match text.split_once(':')? {
            ("host", name) => Some(AffinityOwner::Host(name.into())),
            ("virtual", name) => Some(AffinityOwner::Virtual(name.into())),
            _ => None,
        }
    }
}

impl fmt::Display for AffinityOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AffinityOwner::Host(name) => write!(f, "host:{name}"),
            AffinityOwner::Virtual(name) => write!(f, "virtual:{name}"),
        }
    }
}
