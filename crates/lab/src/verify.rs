//! Tests the Kubernetes network model with packets: every pod and every node sends to every pod.

use std::time::Duration;

use podwire_verify::{Endpoint, Options, Protocol, Report};

use crate::{Lab, Result};

impl Lab {
    /// Tests all pairs with all protocols.
    pub fn verify(&self, timeout: Duration) -> Result<Report> {
        self.send_packets(Options { timeout, nodes_too: false, ..Options::default() })
    }

    /// Tests all pairs with ICMP only, which is faster.
    pub(crate) fn ping_all(&self, timeout: Duration) -> Result<Report> {
        let protocols = &[Protocol::Icmp];
        self.send_packets(Options { timeout, nodes_too: false, protocols, ..Options::default() })
    }

    fn send_packets(&self, options: Options) -> Result<Report> {
        let mut endpoints = Vec::new();
        for (node, pods) in self.list_pods() {
            for pod in pods? {
                let Some(netns) = pod.netns else { continue };
                let endpoint = Endpoint::pod(pod.status.name, netns)?;
                // A pod without addresses can neither send nor receive.
                endpoints.extend(Some(endpoint).filter(|endpoint| !endpoint.own.is_empty()));
            }
            endpoints.push(Endpoint::node(&node, self.netns(&node)?, self.uplink(&node)?.ips())?);
        }
        Ok(podwire_verify::verify(&endpoints, options)?)
    }
}
