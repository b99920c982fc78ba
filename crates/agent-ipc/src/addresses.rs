//! Requests of the plugins `calico` and `calico-ipam` to the agent that holds the node's IPAM blocks.

use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::pods::{Endpoint, PodMetadata};
use crate::{message, pending, Owner, ValidAttachment};

/// The agent's socket.
pub const SOCKET: &str = "/run/podwire/addresses.sock";
/// The agent's state directory: leases and [pending releases](crate::pending).
pub const STATE_DIR: &str = "/var/lib/podwire/addresses";

/// The addresses that an attachment asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AddressRequest {
    /// The pod's Kubernetes namespace; empty if the runtime has no pods.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The pools for the IPv4 address, by name or CIDR; empty: every pool that selects this node; `None`: no IPv4 address.
    pub ipv4_pools: Option<Vec<String>>,
    /// The same for IPv6.
    pub ipv6_pools: Option<Vec<String>>,
    /// Exactly these addresses, at most one of each family. The pools do not matter then.
    pub ips: Vec<IpAddr>,
}

/// A request of a plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Request {
    /// Assign addresses to an attachment.
    Assign {
        /// The attachment.
        owner: Owner,
        /// Which addresses.
        addresses: AddressRequest,
        /// The time limit for the response, in milliseconds.
        timeout_ms: u64,
    },
    /// Release the attachment's addresses.
    Release {
        /// The attachment.
        owner: Owner,
        /// The handle that old Calico releases used, `namespace.pod`, if the runtime has pods.
        legacy_handle: Option<String>,
    },
    /// Return the attachment's addresses.
    Inspect {
        /// The attachment.
        owner: Owner,
    },
    /// Release the addresses of all attachments of a network except the valid ones.
    Collect {
        /// The network.
        network: String,
        /// The attachments to keep.
        valid: Vec<ValidAttachment>,
    },
    /// Return what Kubernetes knows of a pod.
    Pod {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Its UID, if the runtime passes it: a later pod may have the same name.
        uid: String,
    },
    /// Return the pod CIDRs of a node.
    PodCidrs {
        /// The node; `None` is this one.
        node: Option<String>,
    },
    /// Publish the endpoint of a pod that was attached.
    Publish {
        /// The endpoint.
        endpoint: Box<Endpoint>,
    },
    /// Add this network to the endpoint that the container already has through another network.
    Join {
        /// Only the owner is used.
        endpoint: Box<Endpoint>,
    },
    /// Withdraw the endpoint of a pod that was detached.
    Withdraw {
        /// Only the owner and the pod's name are used.
        endpoint: Box<Endpoint>,
    },
    /// Check that an address could be assigned.
    Ping,
}

impl message::Request for Request {
    type Response = Response;
}

/// The agent's response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "response", rename_all = "camelCase")]
pub enum Response {
    /// The attachment's addresses, each with the prefix length of its block.
    Assigned {
        /// The addresses.
        addresses: Vec<IpNet>,
    },
    /// What Kubernetes knows of the pod.
    Pod {
        /// `None` if the agent has no Kubernetes client.
        metadata: Option<Box<PodMetadata>>,
    },
    /// The node's pod CIDRs.
    PodCidrs {
        /// The CIDRs.
        cidrs: Vec<IpNet>,
    },
    /// The network joined this endpoint.
    Joined {
        /// `None` if the container has no endpoint.
        endpoint: Option<Box<Endpoint>>,
    },
    /// The request was carried out, or is recorded and will be.
    Done,
    /// The request failed.
    Failed {
        /// A CNI error code.
        code: u32,
        /// What failed and why.
        msg: String,
        /// What to do next.
        hint: String,
    },
}

/// An attachment's addresses, as stored in the state directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lease {
    /// The attachment.
    pub owner: Owner,
    /// The addresses, each with the prefix length of its block; empty in a [pending release](release) without a lease.
    #[serde(default)]
    pub addresses: Vec<IpNet>,
    /// The pod's Kubernetes namespace, if the runtime has pods.
    #[serde(default)]
    pub namespace: String,
    /// The pod's name.
    #[serde(default)]
    pub pod: String,
    /// The [boot](crate::pending::boot_id) during which it was assigned.
    #[serde(default)]
    pub boot_id: String,
}

/// Records that the addresses of an attachment are to be released, even if there is no lease: Calico's own plugin may have
/// assigned them. An existing lease is moved, because it has more detail, unless a power loss left it unreadable.
pub fn release(state: &Path, owner: &Owner) -> std::io::Result<()> {
    pending::release(state, owner)?;
    let dir = pending::released_dir(state);
    if pending::is_readable::<Lease>(&dir.join(pending::file_name(owner))) {
        return Ok(());
    }
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
    let lease = Lease { owner: owner.clone(), ..Lease::default() };
    pending::write(&dir, &pending::file_name(owner), &lease)
}
