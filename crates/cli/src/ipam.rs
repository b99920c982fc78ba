//! `podwire ipam …`: the address pools and blocks of a cluster, in SQLite, etcd or Kubernetes.
//!
//! The commands do what calicoctl's do. They take no lock: pods can start and stop meanwhile.

mod check;
mod configure;
mod migrate;
mod node_flags;
mod pool;
mod release;
mod serve;
mod show;
mod split;
mod store_flags;
mod upgrade;

use clap::Subcommand;
pub(crate) use node_flags::NodeFlags;
pub(crate) use store_flags::StoreFlags;

use crate::failure::Failure;
use crate::output::Output;

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Show the use of pools and blocks, or the owner of an address.
    #[command(after_help = show::EXAMPLES)]
    Show(show::Show),
    /// Compare blocks, handles and affinities with each other; with --repair repair them.
    #[command(after_help = check::EXAMPLES)]
    Check(check::Check),
    /// Release an address, all addresses of a handle, or all of a deleted node.
    #[command(after_help = release::EXAMPLES)]
    Release(release::Release),
    /// Split a pool into smaller ones.
    #[command(after_help = split::EXAMPLES)]
    Split(split::Split),
    /// Show or change the IPAM settings of the cluster.
    #[command(after_help = configure::EXAMPLES)]
    Configure(configure::Configure),
    /// Create a pool.
    #[command(after_help = pool::EXAMPLES)]
    Pool(pool::Pool),
    /// Import the host-local addresses of this node's pods into blocks.
    #[command(after_help = migrate::EXAMPLES)]
    Migrate(migrate::Migrate),
    /// Import the host-local addresses of this node's pods, then remove host-local's files.
    #[command(after_help = upgrade::EXAMPLES)]
    Upgrade(upgrade::Upgrade),
    /// Allocate addresses for the plugins of this node, without routes.
    #[command(after_help = serve::SERVE_EXAMPLES)]
    Serve(serve::Serve),
    /// Answer one request of the plugin calico-ipam from the datastore of its config.
    #[command(after_help = serve::ANSWER_EXAMPLES)]
    Answer(serve::AnswerRequest),
}

impl Verb {
    /// Whether the command reads the addresses of this node's pods.
    pub(crate) fn reads_node(&self) -> bool {
        matches!(self, Verb::Migrate(_) | Verb::Upgrade(_))
    }

    pub(crate) fn run(&self) -> Result<Output, Failure> {
        match self {
            Verb::Show(verb) => verb.run(),
            Verb::Check(verb) => verb.run(),
            Verb::Release(verb) => verb.run(),
            Verb::Split(verb) => verb.run(),
            Verb::Configure(verb) => verb.run(),
            Verb::Pool(verb) => verb.run(),
            Verb::Migrate(verb) => verb.run(),
            Verb::Upgrade(verb) => verb.run(),
            Verb::Serve(verb) => verb.run(),
            Verb::Answer(verb) => verb.run(),
        }
    }
}
