//! The namespaces, nodes and labs whose paths are measured.

use std::path::Path as File;

use anyhow::Result;
use podwire_tests::{ours, GO};

use crate::case::{Case, Network};
use crate::chain::ChainNode;
use crate::lab::Lab;
use crate::raw::Raw;
use crate::Arguments;

/// Everything that carries packets. It is removed with this value.
pub struct Sites {
    raw: Raw,
    chains: Vec<ChainNode>,
    labs: Vec<Lab>,
}

impl Sites {
    pub fn new(arguments: &Arguments) -> Result<Sites> {
        let mut sites = Sites { raw: Raw::new(), chains: Vec::new(), labs: Vec::new() };
        for (network, directory) in [(Network::Go, GO.to_owned()), (Network::Ours, ours())] {
            if arguments.has_network(network) {
                if File::new(&directory).join("bridge").exists() {
                    sites.chains.push(ChainNode::new(network, &directory)?);
                } else {
                    println!("  left out: no plugins in {directory}");
                }
            }
        }
        for network in [Network::Flannel, Network::Ptp, Network::Calico] {
            for setup in arguments.setups().into_iter().filter(|_| arguments.has_network(network)) {
                for path in arguments.between_nodes(network) {
                    sites.labs.push(Lab::up(network, setup, path)?);
                }
            }
        }
        Ok(sites)
    }

    /// The chosen cases, and the kernel alone.
    pub fn cases(&self, arguments: &Arguments) -> Result<Vec<Case>> {
        let mut all = self.raw.cases()?;
        let mut add =
            |cases: Vec<Case>| all.extend(cases.into_iter().filter(|case| arguments.has_path(case.path)));
        for chain in &self.chains {
            add(chain.cases()?);
        }
        for (at, lab) in self.labs.iter().enumerate() {
            let has_sibling = self.labs[..at].iter().any(|other| other.is_sibling(lab));
            add(lab.cases(!has_sibling)?);
        }
        Ok(all)
    }
}
