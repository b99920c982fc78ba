//! Errors of the data path and of the thread.

use podwire_netlink::nft::Table;

use crate::kube_proxy::Sign;

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
    #[error(
        "end UDP flows to endpoints that are gone, and of clients outside of loadBalancerSourceRanges: {0}; clients that \
         keep their port may lose packets, or are still served"
    )]
    StaleFlows(#[source] podwire_netlink::Error),
    /// Two proxies on one node would both rewrite connections.
    #[error(
        "kube-proxy runs on this node: {0}; remove it from this node before the agent serves Services \
         (docs/migration-from-kube-proxy.md)"
    )]
    KubeProxyRuns(Sign),
    /// What kube-proxy left cannot be removed. It is as before.
    #[error("remove {0}, which kube-proxy left: {1}")]
    Cleanup(String, #[source] Box<Error>),
    /// Another program's rules use kube-proxy's chain.
    #[error(
        "a rule in chain {from} of table {table} leads to {target}, and that chain is not one of kube-proxy's; nothing in \
         this table was changed: delete the rule, or what created it"
    )]
    UsedChain {
        /// The table.
        table: Table,
        /// The chain with the rule.
        from: String,
        /// kube-proxy's chain.
        target: String,
    },
    /// The kernel refused to list rules of iptables-legacy.
    #[error("look for chains of kube-proxy in iptables-legacy: {0}")]
    LegacyIptables(#[source] std::io::Error),
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
