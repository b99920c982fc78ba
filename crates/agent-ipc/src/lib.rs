//! What plugins and daemons say to each other.
//!
//! A plugin lives for a moment, and must link nothing that is slow to start; a daemon knows what lasts. They speak over a unix
//! socket: the plugin writes a question as a [line](line) of JSON, the daemon answers with one, and that was it. What a plugin could not
//! say, because nobody listened, it leaves on the disk ([`notes`]).

#![forbid(unsafe_code)]

pub mod blocks;
pub mod dhcp;
pub mod door;
pub mod line;
pub mod notes;
pub mod pods;
pub mod status;

use serde::{Deserialize, Serialize};

/// An attachment: the interface of a container in a network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Owner {
    /// The network's name.
    pub network: String,
    /// The container's id.
    pub container: String,
    /// The interface's name in the container.
    pub ifname: String,
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}/{}", self.network, self.container, self.ifname)
    }
}
