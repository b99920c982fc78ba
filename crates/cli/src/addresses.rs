//! `podwire ipam …`: the address pools and blocks of a cluster, by hand. What calicoctl's users know, over SQLite and etcd, and
//! without locking anything: pods come and go meanwhile.

mod check;
mod configure;
mod place;
mod pool;
mod release;
mod show;
mod split;

use clap::Subcommand;

use crate::{Answer, Failure};

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Show how full pools and blocks are, or who has an address.
    #[command(after_help = show::EXAMPLES)]
    Show(show::Show),
    /// Compare blocks, handles and claims with each other, and mend what differs.
    #[command(after_help = check::EXAMPLES)]
    Check(check::Check),
    /// Take back an address, or all addresses of a handle.
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
        }
    }
}

/// For `map_err`: `what` could not be done because of blocks.
fn to(what: &str) -> impl Fn(ipam::blocks::Error) -> Failure + '_ {
    move |error| Failure::new(what, cni::Error::internal(error.to_string()).with_details(error.hint()))
}
