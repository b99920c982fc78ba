//! Endpoints that the store rejects, one by one.

use std::time::{Duration, Instant};

use podwire_block_ipam::Error as IpamError;

/// How long the sync continues past failures.
const MAX_FAILING: Duration = Duration::from_secs(5);

/// How long it does although pods wait for an address.
const MAX_DELAY: Duration = Duration::from_millis(200);

/// The first failure of a sync. Other endpoints are still synced, unless the store keeps failing: then it does not
/// answer at all.
#[derive(Default)]
pub(super) struct Failures(Option<(IpamError, Instant)>);

impl Failures {
    /// Adds a failure. Returns the first one if the sync should stop.
    pub(super) fn add(&mut self, error: IpamError) -> Result<(), IpamError> {
        let (first, since) = self.0.get_or_insert_with(|| (error, Instant::now()));
        if since.elapsed() < MAX_FAILING {
            Ok(())
        } else {
            Err(first.clone())
        }
    }

    /// Whether the store has failed for longer than a pod should wait.
    pub(super) fn is_long(&self) -> bool {
        self.0.as_ref().is_some_and(|(_, since)| since.elapsed() > MAX_DELAY)
    }

    /// The first failure.
    pub(super) fn into_result(self) -> Result<(), IpamError> {
        self.0.map_or(Ok(()), |(first, _)| Err(first))
    }
}
