//! `podwire ipam …`: the address pools and blocks of a cluster, by hand. What calicoctl's users know, over SQLite, etcd and Kubernetes, and
//! without locking anything: pods come and go meanwhile.

mod check;
mod configure;
mod migrate;
mod owner;
mod place;
mod pool;
mod release;
mod serve;
mod show;
mod split;
mod upgrade;

use clap::Subcommand;
pub(crate) use owner::Owner;
pub(crate) use place::Place;

use crate::{Answer, Failure};

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Show how full pools and blocks are, or who has an address.
    #[command(after_help = show::EXAMPLES)]
    Show(show::Show),
    /// Compare blocks, handles and claims with each other; with --mend mend what differs.
    #[command(after_help = check::EXAMPLES)]
    Check(check::Check),
    /// Take back an address, or all addresses of a handle, or of a node that is gone.
    #[command(after_help = release::EXAMPLES)]
    Release(release::Release),
    /// Cut a pool into smaller ones.
    #[command(after_help = split::EXAMPLES)]
    Split(split::Split),
    /// Show or change the settings of the cluster.
    #[command(after_help = configure::EXAMPLES)]
    Configure(configure::Configure),
    /// Make a pool.
    #[command(after_help = pool::EXAMPLES)]
    Pool(pool::Pool),
    /// Enter what pods of this node have from host-local into blocks.
    #[command(after_help = migrate::EXAMPLES)]
    Migrate(migrate::Migrate),
    /// Leave host-local for good: enter what pods have, then remove its files.
    #[command(after_help = upgrade::EXAMPLES)]
    Upgrade(upgrade::Upgrade),
    /// Own this node's blocks, and give pods addresses of them at once.
    #[command(after_help = serve::SERVE_EXAMPLES)]
    Serve(serve::Serve),
    /// Answer one question of the plugin calico-ipam from the datastore of its config.
    #[command(after_help = serve::ANSWER_EXAMPLES)]
    Answer(serve::AnswerOne),
}

impl Verb {
    pub(crate) fn run(&self) -> Result<Answer, Failure> {
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

/// For `map_err`: `what` could not be done because of blocks.
fn to(what: &str) -> impl Fn(podwire_block_ipam::Error) -> Failure + '_ {
    move |error| {
        Failure::new(what, podwire_cni_spec::Error::internal(error.to_string()).with_details(error.hint()))
    }
}
