//! A cluster on one machine, to play with, to learn from and to break.
//!
//! ```text
//!   n1 ─┐                     ┌─ n3        each node: an agent, pods, and files of its own
//!       ├─ lan1 ─ router ─ lan2 ┤          router:    bridges, routes between them, etcd if asked for
//!   n2 ─┘                     └─ n4
//! ```
//!
//! A machine of the lab, a node or the router, is held by one process in namespaces of its own: network, mounts, processes,
//! host name. It sees the files of the real machine, but for an empty `/run` and `/var/lib` and an `/etc/cni` of its own. The
//! nodes' uplinks are cables to bridges in the router: the real machine's network has no part in it. On each node runs
//! `podwire agent`, this same program, and its pods are run by `podwire pod run` with the list of plugins that the agent
//! wrote; where pods are routed it is `podwire node`, and a list that the lab wrote. A lab is made by doing in it what a person
//! would do on machines.
//!
//! What is known of a lab is in its folder, `/run/podwire/lab/<name>`, so any shell can go on with it. A machine's process lives
//! only once it is written down there, and everything on a machine ends with that process: [`Lab::down`] leaves nothing,
//! whoever was killed before.

#![forbid(unsafe_code)]

mod agents;
mod down;
mod error;
mod fault;
mod guard;
mod harm;
mod home;
mod inside;
mod machine;
mod plan;
mod pods;
mod policies;
mod proof;
mod remedy;
mod routed;
mod state;
mod status;
mod store;
mod up;
mod wires;
mod word;

use std::path::PathBuf;

pub use error::{Error, Result};
pub use fault::Fault;
pub use guard::Guard;
pub use plan::{Family, Plan, Store, BACKENDS, NETWORKS};
pub use policies::Applied;
pub use remedy::Healed;
pub use state::{Broken, Stage};
pub use status::{NodeStatus, PodStatus, Status};

use home::Home;
use state::State;

/// Where labs are noted down: it goes with the boot, as they do.
pub const FOLDER: &str = "/run/podwire/lab";

/// A lab that is there.
#[derive(Debug)]
pub struct Lab {
    home: Home,
    state: State,
}

impl Lab {
    /// The lab of this name, to look at: others may change it meanwhile.
    pub fn find(name: &str) -> Result<Lab> {
        let home = Home::find(name)?;
        let state = home.read()?.ok_or_else(|| home.unknown())?;
        Ok(Lab { home, state })
    }

    /// The lab of this name, to change it. Waits until nobody else does.
    pub fn hold(name: &str) -> Result<Lab> {
        let home = Home::find(name)?.lock()?;
        let state = home.read()?.ok_or_else(|| home.unknown())?;
        Ok(Lab { home, state })
    }

    /// The names of all labs.
    pub fn names() -> Vec<String> {
        let entries = std::fs::read_dir(FOLDER).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// What was asked for.
    pub fn plan(&self) -> &Plan {
        &self.state.plan
    }

    /// What was broken and not healed.
    pub fn broken(&self) -> &[Broken] {
        &self.state.broken
    }

    /// Where the words of a machine's programs are.
    pub fn log(&self, machine: &str) -> PathBuf {
        self.home.log(machine)
    }

    /// The nodes that are there, in their order.
    pub fn nodes(&self) -> Vec<String> {
        self.state.plan.node_names().filter(|name| self.state.machines.contains_key(name)).collect()
    }

    fn save(&self) -> Result<()> {
        self.home.write(&self.state)
    }
}
