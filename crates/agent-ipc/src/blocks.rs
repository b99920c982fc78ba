//! What the plugins `calico` and `calico-ipam` and the owner of a node's blocks, the node's agent, say to each other.

use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::pods::{Endpoint, Pod};
use crate::{notes, Owner};

/// Where the agent listens.
pub const DOOR: &str = "/run/podwire/addresses.sock";
/// Where the leases and the [notes](crate::notes) are.
pub const STATE: &str = "/var/lib/podwire/addresses";

/// Which addresses an attachment wants.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Wish {
    /// The pod's namespace in the cluster; empty if the runtime knows no pods.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// For each family that is wanted, the pools to take it from, by name or CIDR; none: those that are for this node.
    pub v4: Option<Vec<String>>,
    /// The same for IPv6.
    pub v6: Option<Vec<String>>,
    /// These very addresses, one of a family at most, and nothing else.
    pub ips: Vec<IpAddr>,
}

/// What a plugin asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "lowercase")]
pub enum Question {
    /// Addresses for an attachment.
    Assign {
        /// Whose.
        owner: Owner,
        /// Which.
        wish: Wish,
        /// How many milliseconds the answer may take.
        patience: u64,
    },
    /// Take them back.
    Release {
        /// Whose.
        owner: Owner,
        /// The handle of old releases of Calico, `namespace.pod`, if the runtime knows pods.
        legacy: Option<String>,
    },
    /// Which has it?
    Inspect {
        /// Whose.
        owner: Owner,
    },
    /// Take back those of all attachments of a network but these.
    Collect {
        /// The network.
        network: String,
        /// Container and interface of attachments that are to be left alone.
        valid: Vec<(String, String)>,
    },
    /// What is known of a pod in the cluster?
    Pod {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Which of those that had this name, if the runtime says it.
        uid: String,
    },
    /// Which ranges has the cluster given to a node?
    Ranges {
        /// The node, if it is not this one.
        node: Option<String>,
    },
    /// A pod is connected: let others know.
    Publish {
        /// What there is to know.
        endpoint: Box<Endpoint>,
    },
    /// The container has the interface by another network: may this one join it?
    Join {
        /// Whose endpoint it would be; the rest does not matter.
        endpoint: Box<Endpoint>,
    },
    /// It is connected no longer.
    Withdraw {
        /// Whose endpoint it is, and the pod's name; the rest does not matter.
        endpoint: Box<Endpoint>,
    },
    /// Could a pod get an address?
    Ping,
}

impl crate::line::Question for Question {
    type Answer = Answer;
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "lowercase")]
pub enum Answer {
    /// These addresses, each with the prefix length of its block.
    Given {
        /// The addresses.
        addresses: Vec<IpNet>,
    },
    /// This is known of the pod; nothing, if there is no cluster to ask.
    Pod {
        /// What.
        known: Option<Box<Pod>>,
    },
    /// These ranges.
    Ranges {
        /// The ranges.
        ranges: Vec<IpNet>,
    },
    /// It has joined this endpoint; nothing, if there is none.
    Joined {
        /// Which.
        endpoint: Option<Box<Endpoint>>,
    },
    /// It was done, or it will be.
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

/// An attachment's addresses, as they are kept on the disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Whose.
    pub owner: Owner,
    /// The addresses, each with the prefix length of its block; none, if it was made by a note that knew no more.
    #[serde(default)]
    pub addresses: Vec<IpNet>,
    /// The pod's namespace and name, if the runtime knows pods.
    #[serde(default)]
    pub namespace: String,
    /// The pod's name.
    #[serde(default)]
    pub pod: String,
    /// In which life of the machine it was given.
    #[serde(default)]
    pub boot: String,
}

/// Notes that what an attachment has is to be given back, although nobody here knows what that is: it may have been given by another
/// program than ours. A lease that is there is moved, and says more, unless the machine lost its power while it was written.
pub fn leave(state: &Path, owner: &Owner) -> std::io::Result<()> {
    notes::leave(state, owner)?;
    let folder = notes::released(state);
    if notes::is_readable::<Lease>(&folder.join(notes::file_name(owner))) {
        return Ok(());
    }
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
    let lease = Lease { owner: owner.clone(), ..Lease::default() };
    notes::write(&folder, &notes::file_name(owner), &lease)
}
