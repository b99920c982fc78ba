//! Checks that the records and the kernel state of a node agree.
//!
//! Four sources know attachments: the plugins' ledger (`/run/podwire/ledger`), the runtimes' records
//! (`/var/lib/cni/results`), the address pools of host-local, and the kernel with its links and firewall elements. Every
//! object has an owner: network, container, interface. The [`Inventory`] collects the owners of the ledger and the records
//! and checks for each whether the pod's namespace exists. The faults are:
//!
//! - objects of a pod that is gone; the repair is DEL with the config of the ADD;
//! - objects without a known owner; the repair removes them;
//! - objects that a running pod lacks; the repair restores them in place, without packet loss.
//!
//! No object is removed that may be in use: an ADD in progress holds a lock on its ledger file, and objects that other
//! programs have yet to record have a grace period of one minute.

#![forbid(unsafe_code)]

mod attached;
mod detached;
mod fault;
mod inventory;
mod orphans;

use podwire_cni_plugin::Registry;
use podwire_cni_runtime::{Cache, ConfigFolder, Runtime};

pub use fault::{Fault, Location};
pub use inventory::{Inventory, KnownAttachment, PodState};

/// The node to check.
#[derive(Debug)]
pub struct Node<'p> {
    /// The network configs.
    pub folder: ConfigFolder,
    /// The runtimes' records.
    pub cache: Cache,
    /// Runs DEL and CHECK of attachments that other plugins made.
    pub runtime: Runtime<'p>,
    /// The plugins of this program.
    pub registry: Registry<'p>,
}

impl<'p> Node<'p> {
    /// All faults, in the order in which to repair them: a port or address of a pod that is gone may be what a running pod
    /// lacks.
    pub fn audit(&'p self) -> Vec<Fault<'p>> {
        // ADD is recorded before it creates anything, and DEL is recorded until it has removed everything. So an orphan
        // exists before and after the inventory.
        let before = orphans::KernelState::read();
        let inventory = Inventory::collect(self);
        let mut faults = detached::faults(self, &inventory);
        faults.extend(orphans::faults(self, orphans::KernelState::read().also_in(&before), &inventory));
        faults.extend(attached::faults(self, &inventory));
        faults
    }
}
