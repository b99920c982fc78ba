//! Whether the veth pairs of pods exist.

use std::fs;

use podwire_agent_ipc::pods::{self, Endpoint};

/// The interfaces of the agent's network namespace.
pub(super) struct Veths {
    netns: u64,
    /// `/proc/net/dev`; none if it cannot be read.
    list: Option<String>,
}

impl Veths {
    pub(super) fn list() -> Veths {
        let list = fs::read_to_string("/proc/thread-self/net/dev").ok();
        Veths { netns: pods::current_netns_inode(), list }
    }

    /// Whether the host end of a pod's veth pair exists. In another network namespace it may: it cannot be seen from
    /// here.
    pub(super) fn may_have(&self, endpoint: &Endpoint) -> bool {
        let is_visible = endpoint.host_netns != 0 && endpoint.host_netns == self.netns;
        let is_veth =
            |line: &str| line.split_once(':').is_some_and(|(name, _)| name.trim() == endpoint.interface);
        !is_visible || self.list.as_ref().is_none_or(|list| list.lines().any(is_veth))
    }
}
