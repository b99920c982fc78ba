//! Keeping a range: renewing its lease in time, and noticing when it is not ours any more.
//!
//! flannel renews an hour before the end, and ends itself when its key is gone. Here the caller is told, and may ask for a
//! range again: most likely it gets the same one, and no pod notices.

use std::fmt;
use std::time::Duration;

use etcd_client::{Compare, CompareOp, KeyValue, WatchOptions};

use super::session::{patiently, Session};
use super::{lease::Record, Etcd};
use crate::{Error, Node, Result};
use podwire_kubernetes::Backoff;

/// The range is not ours any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseLost {
    /// The key.
    pub key: String,
    /// How that came.
    pub reason: String,
}

impl fmt::Display for LeaseLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the lease of {} has been lost: {}; asking for a range again", self.key, self.reason)
    }
}

pub(super) async fn keep(etcd: &Etcd, node: &Node) -> LeaseLost {
    let key = match etcd.keys.subnet(node.pod_cidrs) {
        Ok(key) => key,
        Err(error) => return LeaseLost { key: String::new(), reason: error.to_string() },
    };
    let mut backoff = Backoff::new();
    loop {
        match hold(etcd, node, &key, &mut backoff).await {
            Ok(why) => return LeaseLost { key, reason: why },
            // The lease lives on in etcd for the rest of its day; there is time.
            Err(_) => backoff.wait().await,
        }
    }
}

/// Holds the range for as long as the server answers. Returns why it is lost.
async fn hold(etcd: &Etcd, node: &Node, key: &str, backoff: &mut Backoff) -> Result<String> {
    let mut session = etcd.connect().await?;
    loop {
        let Some(found) = session.get(key).await? else {
            return Ok(
                "the key is gone: it was revoked, or the lease ended while etcd was out of reach".into()
            );
        };
        let record = Record::read(&etcd.keys, &found);
        if !node.underlay.v4.is_some_and(|address| record.is_of(address)) {
            return Ok(format!("it is another node's now: {}", String::from_utf8_lossy(found.value())));
        }
        backoff.reset();
        // What is left is asked of the server and waited for by a clock that nobody sets: one that jumps, here or there, neither
        // loses the lease nor renews it all the time.
        let left = match record.lease {
            0 => None,
            lease => Some(session.left(lease).await?.unwrap_or_default()),
        };
        let until_renewal = left.map(|left| until(left, etcd.options.renew_margin));
        if until_renewal.is_some_and(|wait| wait.is_zero()) {
            renew(&mut session, &found).await?;
            continue;
        }
        changed(&mut session, &found, until_renewal).await?;
    }
}

/// How long until a lease of which so much is left is to be renewed.
fn until(left: Duration, margin: Duration) -> Duration {
    left.saturating_sub(margin)
}

/// The same value under a new lease, unless somebody changed it meanwhile; then it is looked at again.
async fn renew(session: &mut Session, found: &KeyValue) -> Result<()> {
    let (key, value) = (String::from_utf8_lossy(found.key()), String::from_utf8_lossy(found.value()));
    let unchanged = Compare::mod_revision(found.key(), CompareOp::Equal, found.mod_revision());
    session.put((&key, &value), true, vec![unchanged]).await?;
    Ok(())
}

/// Waits until the key changes, or until it is time to renew.
async fn changed(session: &mut Session, found: &KeyValue, time: Option<Duration>) -> Result<()> {
    let options = WatchOptions::new().with_start_revision(found.mod_revision() + 1);
    let failed = session.failed("watch the own key".into());
    let mut watch = patiently(session.client.watch(found.key(), Some(options))).await.map_err(&failed)?;
    let wait = async {
        loop {
            match watch.message().await.map_err(&failed)? {
                None => {
                    return Err(failed(etcd_client::Error::WatchError("the server closed the watch".into())))
                }
                // Compacted, for instance: the key is read again, which is all that an event would lead to.
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
    fn a_lease_is_renewed_its_margin_before_its_end_as_flannel_does() {
        let day = 24 * 60 * MINUTE;
        assert_eq!(until(day, 60 * MINUTE), 23 * 60 * MINUTE);
        // flannel's bounds for the margin.
        assert_eq!(until(day, MINUTE), (24 * 60 - 1) * MINUTE);
        assert_eq!(until(day, 1439 * MINUTE), MINUTE);
        // What flanneld left on a node that is taken over in the lease's last hour, or when the lease is over.
        assert_eq!(until(10 * MINUTE, 60 * MINUTE), Duration::ZERO);
        assert_eq!(until(Duration::ZERO, 60 * MINUTE), Duration::ZERO);
    }
}
