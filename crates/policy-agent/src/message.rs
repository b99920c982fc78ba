//! Messages to the policy thread.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::mpsc::Sender;
use std::time::{Instant, SystemTime};

use ipnet::IpNet;
use podwire_agent_ipc::policy::{Interface, Response};
use podwire_agent_ipc::Owner;

use crate::service_names::ServiceNames;
use crate::update::Update;

/// A plugin that waits until its pod's policies are enforced.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub interface: Interface,
    /// The plugin does not wait longer.
    pub until: Instant,
    pub sender: Sender<Response>,
}

#[derive(Debug)]
pub(crate) enum Message {
    /// An event of the source.
    Update(Update),
    /// The updates sent so far include all changes up to this time.
    AsOf(SystemTime),
    /// The node's networks.
    Networks {
        /// Networks that contain only addresses of this node's pods.
        pods: Vec<IpNet>,
        /// The node's own addresses.
        node: Vec<IpAddr>,
    },
    /// The UDP ports to which only other nodes can send.
    GuardedPorts(BTreeSet<u16>),
    /// How the Services of an endpoint are found.
    ServiceNames(ServiceNames),
    /// A plugin attached an interface and waits for the response.
    Attach(Waiting),
    /// A plugin detached an interface.
    Detach(Owner),
    /// A client asks for the objects, without the first ones.
    Objects(usize, Sender<Response>),
}
