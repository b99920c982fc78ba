//! Optimistic transactions: read the rules, build a change, commit it, and start again if another program was faster.

use super::table::{changed_meanwhile, generation};
use super::transaction::Transaction;
use crate::error::{Error, Result};
use crate::socket::Socket;

/// How often an optimistic transaction is tried.
const ATTEMPTS: usize = 100;

/// How an optimistic transaction detects that another program was faster.
#[derive(Clone, Copy, Debug)]
pub struct Retry {
    /// Commit only if no program has changed the rules since they were read. This costs one more query.
    pub at_generation: bool,
    /// Errors of the commit that also mean that another program was faster.
    pub is_race: fn(&Error) -> bool,
}

impl Retry {
    /// Builds a change and commits it. `build` reads the rules and fills the transaction; it is called again after each
    /// lost race. Returns the value of the last call. An empty transaction counts as committed.
    pub fn commit<T, E: From<Error>>(
        self,
        socket: &mut Socket,
        mut build: impl FnMut(&mut Socket, &mut Transaction) -> Result<T, E>,
    ) -> Result<T, E> {
        for _ in 0..ATTEMPTS {
            let mut change = if self.at_generation {
                Transaction::at_generation(generation(socket)?)
            } else {
                Transaction::new()
            };
            let value = build(socket, &mut change)?;
            match change.commit(socket) {
                Ok(()) => return Ok(value),
                Err(error) if changed_meanwhile(&error) || (self.is_race)(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::Contended { attempts: ATTEMPTS }.into())
    }
}
