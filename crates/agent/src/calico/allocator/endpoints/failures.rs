//! What becomes of those whom the store lets nobody tell of.

use std::time::{Duration, Instant};

use podwire_block_ipam::Error as Blocks;

/// So long it goes on past refusals.
const ENOUGH: Duration = Duration::from_secs(5);

/// So long it does although pods wait for an address.
const A_WHILE: Duration = Duration::from_millis(200);

/// The first of those who could not be told of. It keeps nobody else back, unless the store has been saying no for long: then it does not answer at all.
#[derive(Default)]
pub(super) struct Refused(Option<(Blocks, Instant)>);

impl Refused {
    pub(super) fn note(&mut self, error: Blocks) -> Result<(), Blocks> {
        let (first, since) = self.0.get_or_insert_with(|| (error, Instant::now()));
        match since.elapsed() < ENOUGH {
            true => Ok(()),
            false => Err(first.clone()),
        }
    }

    /// Whether the store has been saying no for longer than a pod should wait.
    pub(super) fn is_long(&self) -> bool {
        self.0.as_ref().is_some_and(|(_, since)| since.elapsed() > A_WHILE)
    }

    pub(super) fn told(self) -> Result<(), Blocks> {
        self.0.map_or(Ok(()), |(first, _)| Err(first))
    }
}
