//! A look at the whole node: is everything that is there somebody's, and has everybody what is theirs?
//!
//! Four sides tell of attachments: the ledger of the plugins (`/run/podwire/ledger`), the records of the runtimes
//! (`/var/lib/cni/results`), the address pools of host-local, and the kernel with its links and firewall elements. Each
//! thing on each side belongs to an owner: network, container, interface. The [`census`](Census) gathers all owners that
//! the ledger or a record knows, and tells who of them lives, by the namespace of the pod. Then
//!
//! - what belongs to a pod that is gone is a fault, and mended by DEL with the config that it was added with;
//! - what belongs to nobody that is known is a fault, and mended by removing it;
//! - what a living pod lacks is a fault, and mended by putting it back, in place, with no packet lost.
//!
//! Nothing is removed of which it cannot be told that nobody uses it: an ADD at work holds a lock on its ledger, and
//! what other programs are about to write down has a minute of grace.

#![forbid(unsafe_code)]

mod census;
mod dead;
mod fault;
mod living;
mod strays;

use podwire_cni_plugin::Registry;
use podwire_cni_runtime::{Cache, ConfigFolder, Runtime};

pub use census::{Census, Known, Life};
pub use fault::{Fault, Side};

/// A node to look at.
#[derive(Debug)]
pub struct Node<'p> {
    /// Where the networks are configured.
    pub folder: ConfigFolder,
    /// Where runtimes remember attachments.
    pub cache: Cache,
    /// For DEL and CHECK of what was attached by other plugins than ours.
    pub runtime: Runtime<'p>,
    /// Our plugins.
    pub registry: Registry<'p>,
}

impl<'p> Node<'p> {
    /// Everything that is wrong, in the order in which it is best mended: what the dead hold (a port, an address) may be
    /// what the living lack.
    pub fn audit(&'p self) -> Vec<Fault<'p>> {
        // An ADD is known before it makes anything, and a DEL until it has removed everything: what is nobody's was there before it was asked
        // who is known, and is there afterwards.
        let before = strays::There::look();
        let census = Census::take(self);
        let mut faults = dead::faults(self, &census);
        faults.extend(strays::faults(self, strays::There::look().and_before(&before), &census));
        faults.extend(living::faults(self, &census));
        faults
    }
}
