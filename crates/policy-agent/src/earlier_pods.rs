//! Pods that were attached before their network had policies.
//!
//! The ledger has their interfaces. Those in the cluster's pod network are guarded like all others; a bridge is made to
//! pass its packets to the IP rules first, as ADD does. An interface of another network of the node is not touched: its
//! administrator asked for no policies.

use std::net::IpAddr;

use ipnet::IpNet;
use podwire_agent_ipc::policy::{HostInterface, Interface};
use podwire_kernel::{bridge, Host};
use tracing::{info, warn};

use crate::cluster_state::ClusterState;

/// Interfaces that are not guarded.
#[derive(Debug, Default)]
pub(crate) struct EarlierPods {
    interfaces: Vec<Interface>,
    /// The last failure, so that each is logged once.
    failed: Option<String>,
}

impl EarlierPods {
    pub fn new(interfaces: Vec<Interface>) -> EarlierPods {
        EarlierPods { interfaces, failed: None }
    }

    /// Adds those in the cluster's pod network to the cluster state. `pod_networks`: the networks of this node's pods. One
    /// that fails is tried again by the next reconcile; until then it is reported as unguarded.
    pub fn adopt(&mut self, cluster: &mut ClusterState, pod_networks: &[IpNet]) {
        let in_networks = |ip: &IpAddr| pod_networks.iter().any(|net| net.contains(ip));
        let mut failed = None;
        self.interfaces.retain(|interface| {
            if cluster.is_attached(interface) {
                return false;
            }
            let Some(port) = &interface.host_interface else { return false };
            if !interface.addresses.iter().any(in_networks) && !cluster.lists_address_of(interface) {
                return true;
            }
            let (pod, device) = (interface.pod_name(), &port.name);
            match prepare(port) {
                Ok(()) => {
                    info!(pod, device, "guarding a pod that was attached before its network had policies");
                    cluster.attach(interface.clone());
                    false
                }
                Err(error) => {
                    failed = Some(format!("pod {pod}: {error}"));
                    true
                }
            }
        });
        if failed != self.failed {
            failed.iter().for_each(|error| warn!(error, "a pod cannot be guarded"));
            self.failed = failed;
        }
    }

    /// Forgets an interface that was detached.
    pub fn detach(&mut self, owner: &podwire_agent_ipc::Owner) {
        self.interfaces.retain(|interface| interface.owner != *owner);
    }
}

/// Makes packets between the ports of the pod's bridge pass the IP rules.
fn prepare(port: &HostInterface) -> podwire_kernel::Result<()> {
    if !port.is_bridge_port {
        return Ok(());
    }
    let mut node = Host::here()?;
    let bridge = node.get_link(&port.bridge)?;
    bridge::ensure_seen_by_ip_rules(&mut node, &bridge)
}
