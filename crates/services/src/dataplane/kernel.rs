//! Transactions, and notices of transactions by other programs.
//!
//! Every program that changes nftables rules starts a new generation, also when it changes other tables. Reading this
//! table again each time would take seconds with many Services. So the notices decide: the kernel announces the changes of
//! a transaction and then its generation.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};

use podwire_netlink::nft::{self, Transaction};
use podwire_netlink::{Result, Socket};

use super::sets::TABLE;

/// The send buffer: a transaction of some hundred thousand elements.
const MAX_TRANSACTION: usize = 64 << 20;

/// The kernel's rules.
#[derive(Debug)]
pub(super) struct Kernel {
    /// Stays open: closing a socket that deleted objects waits for an RCU grace period.
    socket: Socket,
    notices: Socket,
    /// The generations that this program committed and whose notice it has not read yet.
    own: BTreeSet<u32>,
    /// The last one of them, read or not.
    committed: Option<u32>,
    /// Whether the notices read so far, since the last generation, are about this table.
    is_affected: bool,
}

impl Kernel {
    /// For the network namespace of the calling thread.
    pub fn open() -> Result<Kernel> {
        let (mut socket, mut notices) = (Socket::netfilter()?, Socket::netfilter()?);
        socket.set_send_buffer(MAX_TRANSACTION)?;
        notices.subscribe(nft::GROUP)?;
        Ok(Kernel { socket, notices, own: BTreeSet::new(), committed: None, is_affected: false })
    }

    /// For reading.
    pub fn socket(&mut self) -> &mut Socket {
        &mut self.socket
    }

    /// Becomes readable when rules change.
    pub fn event_source(&self) -> BorrowedFd<'_> {
        self.notices.as_fd()
    }

    /// The generation of the rules.
    pub fn generation(&mut self) -> Result<u32> {
        nft::generation(&mut self.socket)
    }

    /// Commits the change, unless another program changed rules since the generation. Returns the new generation.
    pub fn commit(&mut self, generation: u32, change: Transaction) -> Result<u32> {
        if change.is_empty() {
            return Ok(generation);
        }
        change.only_at(generation).commit(&mut self.socket)?;
        let new = generation.wrapping_add(1);
        self.own.insert(new);
        self.committed = Some(new);
        Ok(new)
    }

    /// Reads the notices. Returns whether another program may have changed the table.
    pub fn was_changed_by_others(&mut self) -> Result<bool> {
        let Kernel { notices, own, is_affected, .. } = self;
        let mut changed = false;
        let complete = notices.drain(|frame| match nft::announced_generation(frame) {
            Some(generation) => {
                let is_own = own.remove(&generation);
                changed |= *is_affected && !is_own;
                *is_affected = false;
            }
            None => *is_affected |= nft::subject(frame).is_some_and(|(table, _)| table == TABLE),
        })?;
        if complete {
            return Ok(changed);
        }
        // Notices were lost, those of a large transaction of this program or others.
        own.clear();
        *is_affected = false;
        let generation = self.generation()?;
        Ok(self.committed != Some(generation))
    }
}
