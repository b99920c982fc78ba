//! Policy programs in the kernel.
//!
//! A [`Dataplane`] makes the kernel do what a [`Program`](podwire_policy::Program) says. It is given the whole program each time,
//! compares it with what is there, and changes what differs, all at once: at no moment passes what both the old program and the new one
//! forbid, or is dropped what both allow.
//!
//! [`Nftables`] does it with one table, `inet podwire_policy`:
//!
//! ```text
//! forward ─┬─ egress  (priority -10) ─ reply? itself? ─ saddr in map `egress`  ─► chain of the pod ─► stages ─► accept/drop
//! input  ──┘
//! forward ─── ingress (priority -9)  ─ reply? itself? ─ daddr in map `ingress` ─► chain of the pod ─► stages ─► accept/drop
//! ```
//!
//! What a pod sends with an address that is not its own never gets so far: it is dropped where it comes in, for pods on
//! cables of their own in the same table, for ports of a bridge in `bridge podwire_policy`.
//!
//! Two base chains, because "accept" ends one of them only: what a sender's policies let pass, the receiver's still
//! judge. Whatever is dropped ends in one chain for each direction, where it is [counted](Counters) and some of it is
//! [shown](Samples); what passes does not come there. Nothing hangs on the output hook: what a node sends to its own pods passes, whatever their policies.

mod drop_counts;
mod drop_samples;
mod error;
mod nftables;

pub use drop_counts::{Counters, DropCounts};
pub use drop_samples::{Sample, Samples};
pub use error::{Error, Result};
pub use nftables::{Nftables, TableSize, TABLE};

use std::net::IpAddr;

use ipnet::IpNet;
use podwire_policy::Program;

/// Something that enforces programs.
pub trait Dataplane {
    /// Makes the kernel do what the program says on these premises; says how much was changed.
    fn apply(&mut self, program: &Program, premises: &Premises) -> Result<Change>;

    /// Takes all of it back.
    fn remove(&mut self) -> Result<()>;
}

/// What is known of this node's pods besides their policies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Premises {
    /// Networks of pods only. An address in them that is no pod's of the program belongs to one whose policies are not
    /// known yet: nothing of its passes.
    pub guarded: Vec<IpNet>,
    /// Where pods come in.
    pub ports: Vec<Port>,
    /// Whether some of the dropped packets are shown to a [listener](Samples).
    pub samples: bool,
    /// Whether connections may be [ended](Nftables::end).
    pub ends: bool,
}

/// The node's end of a pod's cable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The device.
    pub name: String,
    /// Whose it is: `namespace/name`.
    pub pod: String,
    /// Whether it is a port of a bridge.
    pub bridged: bool,
    /// What the pod may send with.
    pub addresses: Vec<IpAddr>,
    /// What it may send with besides: what it does so is judged by its policies. No two pods have addresses in common.
    pub prefixes: Vec<IpNet>,
    /// The pod's hardware address, which on a bridge is the only one that it may send with.
    pub mac: Option<[u8; 6]>,
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
