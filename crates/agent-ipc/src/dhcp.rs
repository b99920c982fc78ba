//! Requests of the `dhcp` plugin to the DHCP daemon, which holds and renews the leases while their pods run.

use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{message, Owner, ValidAttachment};

/// The daemon's state directory: leases and [pending releases](crate::pending).
pub const STATE_DIR: &str = "/var/lib/podwire/dhcp";
/// The daemon's socket; the Go plugin's daemon uses the same path.
pub const SOCKET: &str = "/run/cni/dhcp.sock";

/// The address families of a lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Families {
    /// DHCPv4 only.
    #[default]
    Ipv4,
    /// DHCPv6 only.
    Ipv6,
    /// One address of each family.
    Dual,
}

/// A DHCPv4 option to send to the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProvidedOption {
    /// The option's number.
    pub code: u8,
    /// Its value.
    pub value: Vec<u8>,
}

/// The lease that a network's config asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LeaseOptions {
    /// Which families.
    pub families: Families,
    /// The numbers of the DHCPv4 options to request from the server.
    pub requested: Vec<u8>,
    /// The DHCPv4 options to send.
    pub provided: Vec<ProvidedOption>,
    /// The metric of the routes.
    pub route_priority: Option<u32>,
    /// The addresses that the attachment had before; the daemon asks for them again.
    pub previous_addresses: Vec<IpAddr>,
}

/// A request of the plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "camelCase")]
pub enum Request {
    /// Acquire a lease and hold it until it is released.
    Acquire {
        /// The attachment.
        owner: Owner,
        /// The path of the pod's network namespace.
        netns: PathBuf,
        /// Which lease.
        options: LeaseOptions,
    },
    /// Release the lease.
    Release {
        /// The attachment.
        owner: Owner,
    },
    /// Return the current lease.
    Inspect {
        /// The attachment.
        owner: Owner,
    },
    /// Release all leases of a network except those of valid attachments.
    Collect {
        /// The network.
        network: String,
        /// The attachments to keep.
        valid: Vec<ValidAttachment>,
    },
    /// Check that the daemon answers.
    Ping,
}

impl message::Request for Request {
    type Response = Response;
}

/// The daemon's response.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "response", rename_all = "camelCase")]
pub enum Response {
    /// A valid lease, as a CNI result.
    Lease {
        /// A result of version 1.1.0.
        result: Value,
    },
    /// There is no valid lease.
    NoLease {
        /// Why not.
        reason: String,
    },
    /// The request was carried out.
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
