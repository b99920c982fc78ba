//! Who the nodes of a cluster are, and which of the pods' addresses are behind which node.
//!
//! A pod network is a few facts about every node: the range of addresses that its pods have, the address by which
//! other nodes reach it, and what the tunnel needs (a hardware address for VXLAN, a key for WireGuard). This crate
//! learns those facts, and tells the others this node's own. They live in one of four places, a [`Source`]:
//!
//! - [`Embedded`]: an SQLite file that several processes of one machine share. No server. One machine, or a lab;
//! - [`StaticList`]: a JSON file with all nodes, written by hand or by whatever rolls out machines;
//! - [`Etcd`]: flannel's keys and values, byte for byte, so that both may share a cluster;
//! - [`Kubernetes`]: the Node objects, with flannel's annotations.
//!
//! What comes out is the same for all of them: [`Snapshot`]s. Each is the whole state, never a difference: who is late may
//! skip all but the latest. A source that cannot be reached is a state too ([`Health::Stale`]): what was known stays
//! known, because packets flow whether or not a server answers. A [`Watch`] never ends by itself.
//!
//! Flannel's other files are here too: [`NetConf`] is net-conf.json, [`SubnetEnv`] is /run/flannel/subnet.env.

#![forbid(unsafe_code)]

mod choice;
mod embedded;
mod error;
mod etcd;
mod folder;
mod go_json;
mod kubernetes;
mod netconf;
mod node;
mod pool;
mod snapshot;
mod source;
mod static_list;
mod subnet_env;

pub use choice::OutOfSubnets;
pub use embedded::Embedded;
pub use error::{Error, Result};
pub use etcd::{Etcd, EtcdOptions, LeaseLost};
pub use kubernetes::{Annotations, Kubernetes, KubernetesOptions, Severity};
pub use netconf::NetConf;
pub use node::{
    find_overlaps, Backend, LeaseTerm, Node, PodCidrs, Registration, Underlay, Vtep, WireguardPeer,
};
pub use pool::{Pool, Pools};
pub use snapshot::{Health, SkippedNode, Snapshot, Watch};
pub use source::Source;
pub use static_list::StaticList;
pub use subnet_env::SubnetEnv;
