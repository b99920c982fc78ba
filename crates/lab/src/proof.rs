//! The network model, proven with packets: every pod asks every pod, every node asks every pod.

use std::time::Duration;

use podwire_verify::{Endpoint, Options, Protocol, Report};

use crate::{Lab, Result};

impl Lab {
    /// Proves it, all pairs.
    pub fn verify(&self, patience: Duration) -> Result<Report> {
        self.prove(Options { timeout: patience, nodes_too: false, ..Options::default() })
    }

    /// Whether all reach each other, as quickly as that can be said.
    pub(crate) fn feel(&self, patience: Duration) -> Result<Report> {
        self.prove(Options {
            timeout: patience,
            nodes_too: false,
            protocols: &[Protocol::Icmp],
            ..Options::default()
        })
    }

    fn prove(&self, options: Options) -> Result<Report> {
        let mut places = Vec::new();
        for (node, pods) in self.list_pods() {
            for pod in pods? {
                let Some(netns) = pod.netns else { continue };
                let place = Endpoint::pod(pod.status.name, netns)?;
                // A pod without addresses has nothing to prove.
                places.extend(Some(place).filter(|place| !place.own.is_empty()));
            }
            let addresses = self.seat(&node)?.sides.iter().map(|side| side.0).collect();
            places.push(Endpoint::node(&node, self.netns(&node)?, addresses)?);
        }
        Ok(podwire_verify::verify(&places, options)?)
    }
}
