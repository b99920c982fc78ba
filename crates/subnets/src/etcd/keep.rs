//! Keeps a subnet: renews its lease in time, and notices when it is lost.
//!
//! flannel renews an hour before the end, and exits when its key is gone. Podwire returns to the caller, which acquires
//! a subnet again. It usually gets the same one, and no pod notices.

use std::fmt;
use std::time::Duration;

use etcd_client::{Compare, CompareOp, KeyValue, WatchOptions};
use podwire_kubernetes::Backoff;

use super::record::{shorten, Record};
use super::session::{with_timeout, Put, Session};
use super::Etcd;
use crate::error::{Error, Result};
use crate::node::Node;

/// The subnet is not this node's any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseLost {
    /// The key.
    pub key: String,
    /// Why.
    pub reason: String,
}

impl fmt::Display for LeaseLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the lease of {} has been lost: {}; acquiring a subnet again", self.key, self.reason)
    }
}

impl Etcd {
    /// Renews the node's lease in time. Returns when the subnet is not the node's any more. While etcd does not answer,
    /// it retries.
    pub async fn keep(&self, node: &Node) -> LeaseLost {
        let key = match self.keys.subnet(node.pod_cidrs) {
            Ok(key) => key,
            Err(error) => return LeaseLost { key: String::new(), reason: error.to_string() },
        };
        let mut backoff = Backoff::new();
        loop {
            match hold(self, node, &key, &mut backoff).await {
                Ok(reason) => return LeaseLost { key, reason },
                // The lease stays valid in etcd for the rest of its 24 hours.
                Err(_) => backoff.wait().await,
            }
        }
    }
}

/// Holds the subnet as long as the server answers. Returns why it is lost.
async fn hold(etcd: &Etcd, node: &Node, key: &str, backoff: &mut Backoff) -> Result<String> {
    let mut session = etcd.connect().await?;
    loop {
        let Some(found) = session.get(key).await? else {
            return Ok(
                "the key is gone: it was revoked, or the lease ended while etcd was unreachable".into()
            );
        };
        let record = Record::parse(&etcd.keys, &found);
        if !node.underlay.v4.is_some_and(|address| record.is_of(address)) {
            let value = shorten(&String::from_utf8_lossy(found.value()));
            return Ok(format!("it is another node's now: {value}"));
        }
        backoff.reset();
        // The remaining time comes from the server, and the wait uses the monotonic clock: a wall clock that jumps,
        // here or there, neither loses the lease nor renews it permanently.
        let left = match record.lease {
            0 => None,
            lease => Some(session.time_to_live(lease).await?.unwrap_or_default()),
        };
        let until_renewal = left.map(|left| time_until_renewal(left, etcd.options.renew_margin));
        if until_renewal.is_some_and(|wait| wait.is_zero()) {
            renew(&mut session, &found).await?;
            continue;
        }
        wait_for_change(&mut session, &found, until_renewal).await?;
    }
}

/// The time until a lease with this remaining time is renewed.
fn time_until_renewal(left: Duration, margin: Duration) -> Duration {
    left.saturating_sub(margin)
}

/// Writes the same value under a new lease, unless it has changed meanwhile. Then the caller reads it again.
async fn renew(session: &mut Session, found: &KeyValue) -> Result<()> {
    let (key, value) = (String::from_utf8_lossy(found.key()), String::from_utf8_lossy(found.value()));
    let unchanged = Compare::mod_revision(found.key(), CompareOp::Equal, found.mod_revision());
    session.put(Put { key: &key, value: &value, is_leased: true }, vec![unchanged]).await?;
    Ok(())
}

/// Waits until the key changes, or until it is time to renew.
async fn wait_for_change(session: &mut Session, found: &KeyValue, time: Option<Duration>) -> Result<()> {
    let options = WatchOptions::new().with_start_revision(found.mod_revision() + 1);
    let failed = session.failed("watch the own key".into());
    let mut watch = with_timeout(session.client.watch(found.key(), Some(options))).await.map_err(&failed)?;
    let wait = async {
        loop {
            match watch.message().await.map_err(&failed)? {
                None => {
                    return Err(failed(etcd_client::Error::WatchError("the server closed the watch".into())))
                }
                // Canceled, for example because of a compaction: the caller reads the key again, as after an event.
                Some(message) if message.canceled() || !message.events().is_empty() => return Ok(()),
                Some(_) => {}
            }
        }
    };
    match time {
        Some(time) => tokio::time::timeout(time, wait).await.unwrap_or(Ok::<(), Error>(())),
        None => wait.await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn a_lease_is_renewed_one_margin_before_its_end_as_in_flannel() {
        let day = 24 * 60 * MINUTE;
        assert_eq!(time_until_renewal(day, 60 * MINUTE), 23 * 60 * MINUTE);
        // The bounds of the margin in flannel.
        assert_eq!(time_until_renewal(day, MINUTE), (24 * 60 - 1) * MINUTE);
        assert_eq!(time_until_renewal(day, 1439 * MINUTE), MINUTE);
        // flanneld's lease on a node that podwire takes over in the lease's last hour, or after its end.
        assert_eq!(time_until_renewal(10 * MINUTE, 60 * MINUTE), Duration::ZERO);
        assert_eq!(time_until_renewal(Duration::ZERO, 60 * MINUTE), Duration::ZERO);
    }
}
