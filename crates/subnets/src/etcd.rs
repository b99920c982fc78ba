//! flannel's keys and values in etcd (API version 3), byte for byte, so that nodes with flannel and nodes with podwire
//! can share one cluster, and a node can change from one to the other and keep its subnet.
//!
//! | key | value |
//! |---|---|
//! | `<prefix>/config` | net-conf.json |
//! | `<prefix>/subnets/10.5.34.0-24` | the node with this subnet; under a lease of 24 hours, or a reservation without one |
//! | `<prefix>/subnets/10.5.34.0-24&fd00:0:0:7::-64` | the same with pod CIDRs of both families |
//!
//! The public address identifies a node. There are no names.
//!
//! Endpoints are tried one after the other until one answers. (The client library can balance requests over all of
//! them, but then a dead one fails its share of the requests, and one of flannel's two default endpoints is always
//! dead.)

mod acquire;
mod keep;
mod keys;
mod record;
mod session;
mod value;
mod watch;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use keep::LeaseLost;
use keys::Keys;

use crate::error::{Error, Result};
use crate::netconf::NetConf;
use crate::node::{Node, Registration};

/// How to reach etcd, and flannel's settings for it. The defaults are flannel's.
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    /// `http://host:port` or `https://host:port`, tried in this order.
    pub endpoints: Vec<String>,
    /// The prefix of all keys.
    pub prefix: String,
    /// The certificate authority. Needed for https unless the system trusts the signer of the server's certificate.
    pub ca_file: Option<PathBuf>,
    /// The client certificate.
    pub cert_file: Option<PathBuf>,
    /// The key of the client certificate.
    pub key_file: Option<PathBuf>,
    /// User name and password.
    pub user: Option<(String, String)>,
    /// The duration of a lease.
    pub ttl: Duration,
    /// How long before its end a lease is renewed.
    pub renew_margin: Duration,
}

impl Default for EtcdOptions {
    fn default() -> EtcdOptions {
        EtcdOptions {
            endpoints: vec!["http://127.0.0.1:4001".into(), "http://127.0.0.1:2379".into()],
            prefix: "/coreos.com/network".into(),
            ca_file: None,
            cert_file: None,
            key_file: None,
            user: None,
            ttl: Duration::from_secs(24 * 60 * 60),
            renew_margin: Duration::from_secs(60 * 60),
        }
    }
}

/// The node records in etcd.
#[derive(Clone, Debug)]
pub struct Etcd {
    options: Arc<EtcdOptions>,
    keys: Keys,
}

impl Etcd {
    /// Checks the options. It does not connect yet.
    pub fn new(options: EtcdOptions) -> Result<Etcd> {
        let wrong = |why: &str| Err(Error::Config { origin: "etcd options".into(), why: why.into() });
        if options.endpoints.iter().all(String::is_empty) {
            return wrong("no endpoint is given; write one such as http://127.0.0.1:2379");
        }
        if options.renew_margin.is_zero() || options.renew_margin >= options.ttl {
            return wrong("subnet-lease-renew-margin is out of acceptable range: it must be more than 0 and less than the lease (24 h)");
        }
        if options.cert_file.is_some() != options.key_file.is_some() {
            return wrong("a certificate needs its key and vice versa: give both files or none");
        }
        let keys = Keys::new(&options.prefix);
        Ok(Etcd { options: Arc::new(options), keys })
    }

    /// The network config.
    pub async fn network(&self) -> Result<NetConf> {
        let mut session = self.connect().await?;
        Ok(session.config().await?.0)
    }

    /// The record of this node's address from before a restart. (flannel does not read it: if its VXLAN device is gone
    /// after a restart, the MAC address is a new one, which all peers must learn.)
    pub async fn find_previous(&self, registration: &Registration) -> Result<Option<Node>> {
        let Some(address) = registration.underlay.v4 else { return Ok(None) };
        let (records, _) = self.connect().await?.list().await?;
        Ok(records.into_iter().find(|record| record.is_of(address)).and_then(|record| record.node.ok()))
    }
}
