//! Errors of the data path and of the thread.

/// The result of the functions of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why the Services of a node are not up to date.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused the elements. The previous ones stay in force.
    #[error("apply the Services: {0}; the previous state stays in force")]
    Apply(#[source] podwire_netlink::Error),
    /// Another program changes nftables rules all the time.
    #[error(
        "apply the Services: another program changed nftables rules {0} times in a row (`nft monitor` shows it)"
    )]
    Busy(usize),
    /// The table changed each time while it was read.
    #[error("read the Services in the kernel: nftables rules changed {0} times meanwhile; try again")]
    Changing(usize),
    /// The kernel refused to list or delete connections.
    #[error("end UDP flows to endpoints that are gone: {0}; clients that keep their port may lose packets")]
    StaleFlows(#[source] podwire_netlink::Error),
    /// The thread cannot start.
    #[error("start the thread of Services: {0}")]
    Thread(#[source] std::io::Error),
    /// The thread that answers health checks cannot start.
    #[error("start the servers of health checks: {0}")]
    HealthServers(#[source] std::io::Error),
    /// The thread has ended.
    #[error(transparent)]
    Ended(#[from] podwire_reconcile::Ended),
    /// A netlink request other than a change of rules.
    #[error(transparent)]
    Netlink(#[from] podwire_netlink::Error),
}

impl Error {
    /// Names the action of an error that happened while the state was applied.
    pub(crate) fn while_applying(self) -> Error {
        match self {
            Error::Netlink(error) => Error::Apply(error),
            other => other,
        }
    }
}
