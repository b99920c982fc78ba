//! Whether the cables of pods are there.

use std::fs;

use podwire_agent_ipc::pods::{self, Endpoint};

/// The interfaces of the network namespace that this program is in, as the kernel lists them.
pub(super) struct Interfaces {
    namespace: u64,
    list: Option<String>,
}

impl Interfaces {
    pub(super) fn here() -> Interfaces {
        let list = fs::read_to_string("/proc/thread-self/net/dev").ok();
        Interfaces { namespace: pods::current_netns_inode(), list }
    }

    /// Whether the node's end of a pod's cable is there. It may be, where this cannot be seen from here.
    pub(super) fn may_have(&self, endpoint: &Endpoint) -> bool {
        let is_seen = endpoint.host_netns != 0 && endpoint.host_netns == self.namespace;
        let is_it =
            |line: &str| line.split_once(':').is_some_and(|(name, _)| name.trim() == endpoint.interface);
        !is_seen || self.list.as_ref().is_none_or(|list| list.lines().any(is_it))
    }
}
