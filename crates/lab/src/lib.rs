//! A cluster on one machine, for learning, testing and fault injection.
//!
//! ```text
//!   n1 ─┐                       ┌─ n3      node:   an agent, pods, and its own files
//!       ├─ lan1 ─ router ─ lan2 ┤          router: bridges, routes between them, etcd if the store is etcd
//!   n2 ─┘                       └─ n4
//! ```
//!
//! A machine of the lab, a node or the router, is one process in its own network, mount, PID and UTS namespaces. It sees
//! the files of the real machine, except for an empty `/run` and `/var/lib` and its own `/etc/cni`. The uplinks of the
//! nodes are veth pairs to bridges in the router, so the network of the real machine is not involved. Each node runs
//! `podwire agent flannel` (this same program), and `podwire pod run` starts its pods with the conflist that the agent
//! wrote. With the network `calico` it is `podwire agent calico` with a conflist that the lab writes. The lab uses the
//! same commands that a person would use on real machines.
//!
//! The state of a lab is in its directory, `/run/podwire/lab/<name>`, so any shell can use the lab. The process of a
//! machine starts its work only after it is recorded there, and everything on a machine ends with that process. So
//! [`Lab::down`] leaves nothing behind, also after a crash.

#![forbid(unsafe_code)]

mod agents;
mod backend;
mod calico;
mod cleanup;
mod directory;
mod down;
mod error;
mod exec;
mod fault;
mod files;
mod heal;
mod inject;
mod links;
mod machine;
mod pods;
mod policies;
mod service_addresses;
mod service_slices;
mod services;
mod spec;
mod state;
mod status;
mod store;
mod up;
mod verify;

use std::path::PathBuf;

pub use cleanup::CleanupProcess;
pub use error::{Error, Result};
pub use fault::Fault;
pub use heal::Healed;
pub use policies::Applied;
pub use services::LabService;
pub use spec::{Families, LabSpec, Store, BACKENDS, NETWORKS};
pub use state::{ActiveFault, Stage};
pub use status::{LabStatus, NodeStatus, PodStatus};

use directory::LabDirectory;
use state::State;

/// A lab that exists.
#[derive(Debug)]
pub struct Lab {
    directory: LabDirectory,
    state: State,
}

impl Lab {
    /// Finds a lab to read its state. Other processes may change it meanwhile.
    pub fn find(name: &str) -> Result<Lab> {
        Lab::read(LabDirectory::find(name)?)
    }

    /// Finds a lab to change it, and waits for the lock.
    pub fn lock(name: &str) -> Result<Lab> {
        Lab::read(LabDirectory::find(name)?.lock()?)
    }

    fn read(directory: LabDirectory) -> Result<Lab> {
        let state = directory.read()?.ok_or_else(|| directory.unknown())?;
        Ok(Lab { directory, state })
    }

    /// The names of all labs.
    pub fn names() -> Vec<String> {
        directory::names()
    }

    /// The specification of the lab.
    pub fn spec(&self) -> &LabSpec {
        &self.state.spec
    }

    /// The injected faults that are not healed.
    pub fn faults(&self) -> &[ActiveFault] {
        &self.state.faults
    }

    /// The log file of a machine.
    pub fn log(&self, machine: &str) -> PathBuf {
        self.directory.log(machine)
    }

    /// The existing nodes, in their order.
    pub fn nodes(&self) -> Vec<String> {
        self.state.spec.node_names().filter(|name| self.state.machines.contains_key(name)).collect()
    }

    fn save(&self) -> Result<()> {
        self.directory.write(&self.state)
    }
}
