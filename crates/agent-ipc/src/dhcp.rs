//! What the `dhcp` plugin and its daemon say to each other.
//!
//! The plugin lives for a moment and a lease for as long as its pod, so a daemon keeps the leases.

use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Owner;

/// Where the leases and the [notes](crate::notes) are.
pub const STATE: &str = "/var/lib/podwire/dhcp";
/// Where the daemon listens, as the Go plugin's does.
pub const SOCKET: &str = "/run/cni/dhcp.sock";

/// Which addresses an attachment wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// One by DHCPv4.
    #[default]
    Ipv4,
    /// One by DHCPv6.
    Ipv6,
    /// One of each.
    Dual,
}

/// What the config says about the lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Wish {
    /// Which addresses.
    pub family: Family,
    /// The numbers of the DHCPv4 options to ask the server for.
    pub requested: Vec<u8>,
    /// DHCPv4 options to send: number and value.
    pub provided: Vec<(u8, Vec<u8>)>,
    /// The metric of the routes.
    pub priority: Option<u32>,
    /// Addresses that it had before and would like again.
    pub before: Vec<IpAddr>,
}

/// What a plugin asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "lowercase")]
pub enum Question {
    /// A lease for an attachment, to be kept until it is released.
    Acquire {
        /// Whose.
        owner: Owner,
        /// The path of the pod's network namespace.
        netns: PathBuf,
        /// Of which kind.
        wish: Wish,
    },
    /// Give the lease back.
    Release {
        /// Whose.
        owner: Owner,
    },
    /// Is there a lease that holds?
    Inspect {
        /// Whose.
        owner: Owner,
    },
    /// Give the leases back of all attachments of a network but these.
    Collect {
        /// The network.
        network: String,
        /// Container and interface of attachments that are to be left alone.
        valid: Vec<(String, String)>,
    },
    /// Is anybody there?
    Ping,
}

impl crate::line::Question for Question {
    type Answer = Answer;
}

/// What the daemon answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "lowercase")]
pub enum Answer {
    /// A lease that holds, as a CNI result.
    Lease {
        /// A result of version 1.1.0.
        result: Value,
    },
    /// There is no lease that holds.
    None {
        /// Why not.
        why: String,
    },
    /// It was done.
    Done,
    /// It could not be done.
    Failed {
        /// A CNI error code.
        code: u32,
        /// What was being done and why it failed.
        msg: String,
        /// What to do next.
        hint: String,
    },
}
