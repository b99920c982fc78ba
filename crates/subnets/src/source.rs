//! The source of node records, whichever kind it is.

use crate::embedded::Embedded;
use crate::error::Result;
use crate::etcd::{Etcd, LeaseLost};
use crate::kubernetes::Kubernetes;
use crate::netconf::NetConf;
use crate::node::{Node, Registration};
use crate::snapshot::Watch;
use crate::static_list::StaticList;

/// Where node records are read and where this node is registered.
///
/// An agent calls [`network`](Source::network), [`find_previous`](Source::find_previous) (so that a VXLAN device gets
/// its previous MAC address) and [`acquire`](Source::acquire). Then it runs [`watch`](Source::watch) and
/// [`keep`](Source::keep). If the watch shows other pod CIDRs for this node, or `keep` returns, it acquires again.
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
    /// The network config.
    pub async fn network(&self) -> Result<NetConf> {
        match self {
            Source::Embedded(source) => source.network().await,
            Source::Static(source) => source.network().await,
            Source::Etcd(source) => source.network().await,
            Source::Kubernetes(source) => source.network().await,
        }
    }

    /// The record of this node from before a restart.
    pub async fn find_previous(&self, registration: &Registration) -> Result<Option<Node>> {
        match self {
            Source::Embedded(source) => source.find_previous(registration).await,
            Source::Static(source) => source.find_previous(registration).await,
            Source::Etcd(source) => source.find_previous(registration).await,
            Source::Kubernetes(source) => source.find_previous().await,
        }
    }

    /// Assigns pod CIDRs to this node, or finds those that it has, and publishes its record. Repeating it updates only
    /// what the registration has changed.
    pub async fn acquire(&self, registration: &Registration) -> Result<Node> {
        match self {
            Source::Embedded(source) => source.acquire(registration).await,
            Source::Static(source) => source.acquire(registration).await,
            Source::Etcd(source) => source.acquire(registration).await,
            Source::Kubernetes(source) => source.acquire(registration).await,
        }
    }

    /// Renews the lease of this node's pod CIDRs. Returns when it is lost. Only etcd has leases; for the others this
    /// never returns.
    pub async fn keep(&self, node: &Node) -> LeaseLost {
        match self {
            Source::Etcd(source) => source.keep(node).await,
            Source::Embedded(_) | Source::Static(_) | Source::Kubernetes(_) => std::future::pending().await,
        }
    }

    /// Releases this node's pod CIDRs. A static list and Kubernetes' controller manage them themselves.
    pub async fn release(&self, node: &Node) -> Result<()> {
        match self {
            Source::Embedded(source) => source.release(&node.name).await,
            Source::Etcd(source) => source.release(node).await,
            Source::Static(_) | Source::Kubernetes(_) => Ok(()),
        }
    }

    /// Checks that a node of the watch may have its pod CIDRs. Any client that can write to the source could redirect
    /// addresses of this machine otherwise. In flannel's etcd no node has more than one subnet; in the other sources an
    /// administrator or a controller chooses the sizes.
    pub fn check_node(&self, conf: &NetConf, node: &Node) -> Result<()> {
        conf.check_pod_cidrs(&node.name, node.pod_cidrs)?;
        match self {
            Source::Etcd(_) => conf.check_size(&node.name, node.pod_cidrs),
            Source::Embedded(_) | Source::Static(_) | Source::Kubernetes(_) => Ok(()),
        }
    }

    /// Watches all nodes. Must be called within a Tokio runtime.
    pub fn watch(&self) -> Watch {
        match self {
            Source::Embedded(source) => source.watch(),
            Source::Static(source) => source.watch(),
            Source::Etcd(source) => source.watch(),
            Source::Kubernetes(source) => source.watch(),
        }
    }
}
