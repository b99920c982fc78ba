//! Acquires and releases a subnet.

use std::net::Ipv4Addr;
use std::time::Duration;

use etcd_client::{Compare, CompareOp};

use podwire_kubernetes::random_u32;

use super::record::Record;
use super::session::{Put, Session};
use super::{value, Etcd};
use crate::error::{Error, Result};
use crate::node::{LeaseTerm, Node, PodCidrs, Registration};
use crate::pool::Pools;
use crate::subnet_choice;

/// The number of attempts. In each failed attempt at least one other node got its subnet, so this is also about how
/// many nodes may compete for the last few.
const ATTEMPTS: u32 = 64;

impl Etcd {
    /// Assigns the node a subnet that no other node has: the one under its address, its previous one, or a random free
    /// one.
    pub async fn acquire(&self, registration: &Registration) -> Result<Node> {
        let Some(address) = registration.underlay.v4 else {
            let why = "it has no public IPv4 address, which identifies a node in flannel's etcd".into();
            return Err(Error::Unreadable { object: format!("node {:?}", registration.name), why });
        };
        let mut session = self.connect().await?;
        for _ in 0..ATTEMPTS {
            let (conf, config_revision) = session.config().await?;
            let attempt =
                Attempt { etcd: self, registration, address, pools: conf.pools()?, config_revision };
            if let Some(node) = attempt.run(&mut session).await? {
                return Ok(node);
            }
            // Nodes that collided must not collide again.
            tokio::time::sleep(Duration::from_millis(u64::from(random_u32() % 20))).await;
        }
        Err(Error::Raced { place: self.keys.prefix().into(), tries: ATTEMPTS })
    }

    /// Releases the subnet, if it is still this node's.
    pub async fn release(&self, node: &Node) -> Result<()> {
        let mut session = self.connect().await?;
        let Some(found) = session.get(&self.keys.subnet(node.pod_cidrs)?).await? else { return Ok(()) };
        let record = Record::parse(&self.keys, &found);
        if node.underlay.v4.is_some_and(|address| record.is_of(address)) {
            session.delete(&record).await?;
        }
        Ok(())
    }
}

/// One attempt to acquire a subnet.
struct Attempt<'a> {
    etcd: &'a Etcd,
    registration: &'a Registration,
    address: Ipv4Addr,
    pools: Pools,
    config_revision: i64,
}

impl Attempt<'_> {
    /// `None` if another node was faster.
    async fn run(&self, session: &mut Session) -> Result<Option<Node>> {
        let (records, revision) = session.list().await?;
        let (own, others): (Vec<Record>, Vec<Record>) =
            records.into_iter().partition(|record| record.is_of(self.address));
        for record in &own {
            if record.pod_cidrs.is_some_and(|pod_cidrs| self.pools.fit(pod_cidrs)) {
                return self.reuse(session, record).await;
            }
        }
        for record in &own {
            // It belongs to an earlier network config, and blocks addresses.
            session.delete(record).await?;
        }
        let claimed = |record: &Record| Some(self.pools.claimed(record.pod_cidrs?, record.node.is_ok()));
        let taken: Vec<PodCidrs> = others.iter().filter_map(claimed).collect();
        let previous = self.registration.previous;
        let pod_cidrs = if subnet_choice::may_keep(&self.pools, previous, &taken) {
            previous
        } else {
            subnet_choice::choose(&self.pools, &taken)?
        };
        self.create(session, pod_cidrs, revision).await
    }

    /// Updates this node's record and renews its lease. A reservation stays without a lease.
    async fn reuse(&self, session: &mut Session, record: &Record) -> Result<Option<Node>> {
        let unchanged = Compare::mod_revision(record.key.as_str(), CompareOp::Equal, record.revision);
        let put = Put { key: &record.key, value: &self.value(), is_leased: record.lease != 0 };
        let put = session.put(put, vec![unchanged]).await?;
        Ok(put.map(|end| self.node(record.pod_cidrs.unwrap_or_default(), end)))
    }

    /// Creates the record of a free subnet. Conditions of the transaction:
    ///
    /// 1. The key does not exist.
    /// 2. The network config has not changed: subnets of two sizes have different keys and may overlap.
    /// 3. With two families, no key was created since the list: the same IPv4 subnet with another IPv6 subnet is
    ///    another key.
    async fn create(
        &self,
        session: &mut Session,
        pod_cidrs: PodCidrs,
        revision: i64,
    ) -> Result<Option<Node>> {
        let keys = &self.etcd.keys;
        let key = keys.subnet(pod_cidrs)?;
        let mut only_if = vec![
            Compare::version(key.as_str(), CompareOp::Equal, 0),
            Compare::mod_revision(keys.config(), CompareOp::Equal, self.config_revision),
        ];
        if pod_cidrs.v6.is_some() {
            let none_since = Compare::create_revision(keys.subnets(), CompareOp::Less, revision + 1);
            only_if.push(none_since.with_prefix());
        }
        let put = Put { key: &key, value: &self.value(), is_leased: true };
        let put = session.put(put, only_if).await?;
        Ok(put.map(|end| self.node(pod_cidrs, end)))
    }

    fn value(&self) -> String {
        value::write(self.registration.underlay, &self.registration.backend)
    }

    fn node(&self, pod_cidrs: PodCidrs, end: Option<std::time::SystemTime>) -> Node {
        let Registration { underlay, backend, .. } = self.registration.clone();
        let key = self.etcd.keys.subnet(pod_cidrs).unwrap_or_default();
        let name = key.rsplit('/').next().unwrap_or_default().to_string();
        Node {
            name,
            pod_cidrs,
            underlay,
            backend,
            lease_term: end.map_or(LeaseTerm::Permanent, LeaseTerm::Until),
        }
    }
}
