//! Whichever place the nodes are in.

use crate::etcd::LeaseLost;
use crate::snapshot::Watch;
use crate::{Embedded, Etcd, Kubernetes, NetConf, Node, Registration, Result, StaticList};

/// Where the nodes are known, and where this one makes itself known.
///
/// An agent's life with a source: [`network`](Source::network), [`find_previous`](Source::find_previous) (a VXLAN device gets its old
/// hardware address), [`acquire`](Source::acquire), then [`watch`](Source::watch) for ever, with [`keep`](Source::keep)
/// beside it. If the watch shows another range under the own name, or `keep` returns, it acquires again.
#[derive(Clone, Debug)]
pub enum Source {
    /// An SQLite file on this machine.
    Embedded(Embedded),
    /// A file that lists all nodes.
    Static(StaticList),
    /// flannel's etcd.
    Etcd(Etcd),
    /// Node objects.
    Kubernetes(Box<Kubernetes>),
}

impl Source {
    /// What all pods' network is.
    pub async fn network(&self) -> Result<NetConf> {
        match self {
            Source::Embedded(source) => source.network().await,
            Source::Static(source) => source.network().await,
            Source::Etcd(source) => source.network().await,
            Source::Kubernetes(source) => source.network().await,
        }
    }

    /// What the source still knows of this node from before it was restarted.
    pub async fn find_previous(&self, registration: &Registration) -> Result<Option<Node>> {
        match self {
            Source::Embedded(source) => source.find_previous(registration).await,
            Source::Static(source) => source.find_previous(registration).await,
            Source::Etcd(source) => source.find_previous(registration).await,
            Source::Kubernetes(source) => source.find_previous().await,
        }
    }

    /// Gives this node a range, or finds the one that it was given, and tells the others about it. Repeating it changes
    /// nothing but what the registration says anew.
    pub async fn acquire(&self, registration: &Registration) -> Result<Node> {
        match self {
            Source::Embedded(source) => source.acquire(registration).await,
            Source::Static(source) => source.acquire(registration).await,
            Source::Etcd(source) => source.acquire(registration).await,
            Source::Kubernetes(source) => source.acquire(registration).await,
        }
    }

    /// Does what is needed for the range to stay this node's, and returns when it is not any more. Only etcd needs
    /// anything; with the others this never returns.
    pub async fn keep(&self, node: &Node) -> LeaseLost {
        match self {
            Source::Etcd(source) => source.keep(node).await,
            Source::Embedded(_) | Source::Static(_) | Source::Kubernetes(_) => std::future::pending().await,
        }
    }

    /// Gives the range back, where it was taken here: a static list and Kubernetes' controller decide for themselves.
    pub async fn release(&self, node: &Node) -> Result<()> {
        match self {
            Source::Embedded(source) => source.release(&node.name).await,
            Source::Etcd(source) => source.release(node).await,
            Source::Static(_) | Source::Kubernetes(_) => Ok(()),
        }
    }

    /// All nodes, now and whenever they change. Must be called within a Tokio runtime.
    pub fn watch(&self) -> Watch {
        match self {
            Source::Embedded(source) => source.watch(),
            Source::Static(source) => source.watch(),
            Source::Etcd(source) => source.watch(),
            Source::Kubernetes(source) => source.watch(),
        }
    }
}
