//! flannel's etcd: its keys and values, byte for byte (API version 3), so that nodes with flannel and nodes with podwire
//! share one cluster, and a node changes from one to the other and keeps its range.
//!
//! | key | value |
//! |---|---|
//! | `<prefix>/config` | net-conf.json |
//! | `<prefix>/subnets/10.5.34.0-24` | the node that has this range; kept alive by a lease of 24 hours, or a reservation without one |
//! | `<prefix>/subnets/10.5.34.0-24&fd00:0:0:7::-64` | the same with pod_cidrs of both families |
//!
//! A node is its public address: who finds a range under its own address has found its own. There are no names.
//!
//! Endpoints are tried one after the other until one answers. (The client library can spread requests over all of them, but
//! then a dead one fails its share of the requests; and of flannel's two default endpoints, one is always dead.)

mod acquire;
mod keep;
mod keys;
mod lease;
mod session;
mod value;
mod watch;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::snapshot::{SnapshotSender, Watch};
use crate::{Error, NetConf, Node, Registration, Result};

pub use keep::LeaseLost;
use keys::Keys;

/// How to reach etcd, and flannel's settings for it. The defaults are flannel's.
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    /// `http://host:port` or `https://host:port`, tried in this order.
    pub endpoints: Vec<String>,
    /// What all keys begin with.
    pub prefix: String,
    /// Whom we trust. Needed for https unless the server's certificate is signed by somebody the system trusts.
    pub ca_file: Option<PathBuf>,
    /// Who we are.
    pub cert_file: Option<PathBuf>,
    /// The key to the certificate.
    pub key_file: Option<PathBuf>,
    /// A user's name and password.
    pub user: Option<(String, String)>,
    /// How long a range stays ours without renewal.
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

/// The nodes in etcd.
#[derive(Clone, Debug)]
pub struct Etcd {
    options: Arc<EtcdOptions>,
    keys: Keys,
}

impl Etcd {
    /// Checks the settings. Nothing is connected yet.
    pub fn new(options: EtcdOptions) -> Result<Etcd> {
        let wrong = |why: &str| Err(Error::Config { origin: "etcd options".into(), why: why.into() });
        if options.endpoints.iter().all(String::is_empty) {
            return wrong("no endpoint is given; write one like http://127.0.0.1:2379");
        }
        if options.renew_margin.is_zero() || options.renew_margin >= options.ttl {
            return wrong("subnet-lease-renew-margin is out of acceptable range: it must be more than nothing and less than the lease (24 h)");
        }
        if options.cert_file.is_some() != options.key_file.is_some() {
            return wrong("a certificate needs its key, and a key its certificate: give both files or none");
        }
        let keys = Keys::new(&options.prefix);
        Ok(Etcd { options: Arc::new(options), keys })
    }

    /// The network's config.
    pub async fn network(&self) -> Result<NetConf> {
        let mut session = self.connect().await?;
        Ok(session.config().await?.0)
    }

    /// What stands under this node's address from before. (flannel does not look: after a restart without its device, its
    /// VXLAN hardware address is a new one, which all others have to learn.)
    pub async fn find_previous(&self, registration: &Registration) -> Result<Option<Node>> {
        let Some(address) = registration.underlay.v4 else { return Ok(None) };
        let (records, _) = self.connect().await?.list().await?;
        Ok(records.into_iter().find(|record| record.is_of(address)).and_then(|record| record.node.ok()))
    }

    /// Gives the node a range that no other has: the one that is under its address already, else what it had before, else
    /// a free one at random.
    pub async fn acquire(&self, registration: &Registration) -> Result<Node> {
        acquire::acquire(self, registration).await
    }

    /// Renews the node's lease in time, for as long as the range is its own; returns when it is not any more. While etcd does
    /// not answer, it goes on trying.
    pub async fn keep(&self, node: &Node) -> LeaseLost {
        keep::keep(self, node).await
    }

    /// Gives the range back, if it is this node's still.
    pub async fn release(&self, node: &Node) -> Result<()> {
        let mut session = self.connect().await?;
        let Some(found) = session.get(&self.keys.subnet(node.pod_cidrs)?).await? else { return Ok(()) };
        let record = lease::Record::read(&self.keys, &found);
        match node.underlay.v4.is_some_and(|address| record.is_of(address)) {
            true => session.delete(&record).await,
            false => Ok(()),
        }
    }

    /// All nodes, and all changes of them.
    pub fn watch(&self) -> Watch {
        let etcd = self.clone();
        SnapshotSender::start(|sender| watch::follow(etcd, sender))
    }
}
