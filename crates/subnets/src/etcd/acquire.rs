//! Getting a range.

use std::net::Ipv4Addr;
use std::time::Duration;

use etcd_client::{Compare, CompareOp};

use super::lease::Record;
use super::session::Session;
use super::{value, Etcd};
use crate::{choice, Error, LeaseTerm, Node, PodCidrs, Pools, Registration, Result};
use podwire_kubernetes::random_u32;

/// How often another node may be faster. Each time at least one node got its range, so this is also about how many
/// nodes may compete for the last few.
const TRIES: u32 = 64;

pub(super) async fn acquire(etcd: &Etcd, registration: &Registration) -> Result<Node> {
    let Some(address) = registration.underlay.v4 else {
        let why = "it has no public IPv4 address, by which flannel's etcd knows a node".into();
        return Err(Error::Unreadable { object: format!("node {:?}", registration.name), why });
    };
    let mut session = etcd.connect().await?;
    for _ in 0..TRIES {
        let (conf, config_changed) = session.config().await?;
        let mut attempt = Attempt { etcd, registration, address, pools: conf.pools()?, config_changed };
        if let Some(node) = attempt.run(&mut session).await? {
            return Ok(node);
        }
        // Those who met here should not meet again.
        tokio::time::sleep(Duration::from_millis(u64::from(random_u32() % 20))).await;
    }
    Err(Error::Raced { place: etcd.keys.prefix().into(), tries: TRIES })
}

/// One look at what is taken, and one try.
struct Attempt<'a> {
    etcd: &'a Etcd,
    registration: &'a Registration,
    address: Ipv4Addr,
    pools: Pools,
    config_changed: i64,
}

impl Attempt<'_> {
    /// `None` if somebody else was faster.
    async fn run(&mut self, session: &mut Session) -> Result<Option<Node>> {
        let (records, revision) = session.list().await?;
        let (own, others): (Vec<Record>, Vec<Record>) =
            records.into_iter().partition(|record| record.is_of(self.address));
        for record in &own {
            if record.pod_cidrs.is_some_and(|pod_cidrs| self.pools.fit(pod_cidrs)) {
                return self.reuse(session, record).await;
            }
        }
        for record in &own {
            // Of another config than today's: of no use to anybody, and in somebody's way.
            session.delete(record).await?;
        }
        let taken: Vec<PodCidrs> = others.iter().filter_map(|record| record.pod_cidrs).collect();
        let previous = self.registration.previous;
        let pod_cidrs = match choice::may_keep(&self.pools, previous, &taken) {
            true => previous,
            false => choice::choose(&self.pools, &taken)?,
        };
        self.create(session, pod_cidrs, revision).await
    }

    /// Our own, from before: what we say of ourselves is renewed, and the lease with it. A reservation stays one.
    async fn reuse(&self, session: &mut Session, record: &Record) -> Result<Option<Node>> {
        let unchanged = Compare::mod_revision(record.key.as_str(), CompareOp::Equal, record.changed);
        let put = session.put((&record.key, &self.value()), record.lease != 0, vec![unchanged]).await?;
        Ok(put.map(|end| self.node(record.pod_cidrs.unwrap_or_default(), end)))
    }

    /// A range that nobody has. The key must not be there; the config must be what we chose by, since pod_cidrs of two sizes
    /// have different keys and may share addresses; and with two families nobody may have come in between at all, since
    /// the same IPv4 range beside another IPv6 range is another key.
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
            Compare::mod_revision(keys.config(), CompareOp::Equal, self.config_changed),
        ];
        if pod_cidrs.v6.is_some() {
            let none_since = Compare::create_revision(keys.subnets(), CompareOp::Less, revision + 1);
            only_if.push(none_since.with_prefix());
        }
        let put = session.put((&key, &self.value()), true, only_if).await?;
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
