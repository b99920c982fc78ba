//! The nodes of a cluster and their pod CIDRs.
//!
//! For every node, a pod network needs its pod CIDRs, the address by which other nodes reach it, and the parameters of
//! its tunnel endpoint (the MAC address for VXLAN, the public key for WireGuard). This crate reads these facts of all
//! nodes and publishes those of this node. They are stored in one of four places, a [`Source`]:
//!
//! - [`Embedded`]: an SQLite file that several processes of one machine share. For one machine, or a lab.
//! - [`StaticList`]: a JSON file with all nodes.
//! - [`Etcd`]: flannel's keys and values, byte for byte, so that flannel and podwire can share a cluster.
//! - [`Kubernetes`]: the Node objects, with flannel's annotations.
//!
//! All of them produce [`Snapshot`]s. Each is the whole state, never a difference, so a slow consumer may skip all but
//! the latest. If a source is unreachable, the snapshot is [`Health::Stale`] and keeps the last known nodes: packets
//! flow whether or not a server answers. A [`Watch`] never ends by itself.
//!
//! This crate also has flannel's files: [`NetConf`] is net-conf.json, [`SubnetEnv`] is /run/flannel/subnet.env.

#![forbid(unsafe_code)]

mod dir_watch;
mod embedded;
mod error;
mod etcd;
mod go_json;
mod kubernetes;
mod netconf;
mod node;
mod pool;
mod snapshot;
mod source;
mod static_list;
mod subnet_choice;
mod subnet_env;

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
pub use subnet_choice::OutOfSubnets;
pub use subnet_env::SubnetEnv;
