//! `podwire agent …`: the daemon of a node, in one of two modes.

mod calico;
mod fast_path_flags;
mod flannel;
mod policy_flags;
mod services_flags;

use clap::Subcommand;

use crate::failure::Failure;

#[derive(Debug, Subcommand)]
pub(crate) enum Mode {
    /// Set up routes to the pod CIDRs of other nodes, instead of flanneld.
    #[command(after_help = flannel::EXAMPLES)]
    Flannel(Box<flannel::Flannel>),
    /// Allocate address blocks and set up routes to those of other nodes, instead of calico-node.
    #[command(after_help = calico::EXAMPLES)]
    Calico(Box<calico::Calico>),
}

impl Mode {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self {
            Mode::Flannel(agent) => agent.run(),
            Mode::Calico(agent) => agent.run(),
        }
    }
}
