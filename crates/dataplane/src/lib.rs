//! Policy programs in the kernel.
//!
//! A [`Dataplane`] makes the kernel do what a [`Program`](policy::Program) says. It is given the whole program each time,
//! compares it with what is there, and changes what differs, all at once: a packet meets the old program or the new one.
//!
//! [`Nftables`] does it with one table, `inet podwire_policy`:
//!
//! ```text
//! forward ─┬─ egress  (priority -10) ─ reply? itself? ─ saddr in map `egress`  ─► chain of the pod ─► stages ─► accept/drop
//! input  ──┘
//! forward ─── ingress (priority -9)  ─ reply? itself? ─ daddr in map `ingress` ─► chain of the pod ─► stages ─► accept/drop
//! ```
//!
//! Two base chains, because "accept" ends one of them only: what a sender's policies let pass, the receiver's still
//! judge. Nothing hangs on the output hook: what a node sends to its own pods passes, whatever their policies.

#![forbid(unsafe_code)]

mod error;
mod nftables;

pub use error::{Error, Result};
pub use nftables::Nftables;

use ipnet::IpNet;
use policy::Program;

/// Something that enforces programs.
pub trait Dataplane {
    /// Makes the kernel do what the program says; says how much was changed. Addresses in the `guarded` networks that
    /// are no pod's of the program belong to pods whose policies are not known yet: nothing of theirs passes.
    fn apply(&mut self, program: &Program, guarded: &[IpNet]) -> Result<Change>;

    /// Takes all of it back.
    fn remove(&mut self) -> Result<()>;
}

/// How much had to be changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Chains that were made, filled anew or deleted.
    pub chains: usize,
    /// Sets and maps that were made or deleted.
    pub sets: usize,
    /// Elements that were added or deleted in sets that stay.
    pub elements: usize,
}

impl Change {
    /// Whether everything was as it should be.
    pub fn is_empty(&self) -> bool {
        *self == Change::default()
    }
}
