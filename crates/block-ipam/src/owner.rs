//! Who a block is for.

use std::fmt;

/// A node, or something that is no node but has addresses all the same (a load balancer).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Owner {
    /// A node, by its name.
    Host(String),
    /// Something else, by its name.
    Virtual(String),
}

impl Owner {
    /// A node.
    pub fn host(name: impl Into<String>) -> Owner {
        Owner::Host(name.into())
    }

    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Owner::Host(name) | Owner::Virtual(name) => name,
        }
    }

    /// Reads `host:node1`.
    pub fn parse(text: &str) -> Option<Owner> {
        match text.split_once(':')? {
            ("host", name) => Some(Owner::Host(name.into())),
            ("virtual", name) => Some(Owner::Virtual(name.into())),
            _ => None,
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Owner::Host(name) => write!(f, "host:{name}"),
            Owner::Virtual(name) => write!(f, "virtual:{name}"),
        }
    }
}
