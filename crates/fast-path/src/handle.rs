//! The handle of the fast path's thread.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use podwire_kernel::Host;
use podwire_reconcile::Handle;
use tracing::warn;

use crate::error::{Error, Result};
use crate::programs::Programs;
use crate::reconciler::{FastPathReconciler, RESYNC};
use crate::status::{locked, Status};
use crate::{rules, sysctls};

/// The handle of the thread. The programs stay when it ends.
#[derive(Clone)]
pub struct FastPath {
    thread: Handle<Vec<String>>,
    programs: Arc<Mutex<Programs>>,
    status: Arc<Mutex<Status>>,
}

impl FastPath {
    /// Loads the programs and starts the thread, in the network namespace of the caller. An error is a reason why the
    /// fast path is off. `pause` is the shortest time between two reconciles because of devices.
    pub fn start(pause: Duration) -> Result<FastPath> {
        // First, because nothing of the node changes if it fails.
        let programs = Arc::new(Mutex::new(Programs::load()?));
        // The chain makes the kernel load conntrack, which has the sysctls. It marks nothing yet.
        rules::apply(Host::here()?.nft()?, &BTreeSet::new())?;
        sysctls::make_conntrack_liberal()?;
        let status = Arc::<Mutex<Status>>::default();
        let reconciler = FastPathReconciler::open(pause, programs.clone(), status.clone())?;
        let thread = podwire_reconcile::spawn("fast-path", RESYNC, reconciler);
        let thread = thread.map_err(|error| Error::Thread(error.to_string()))?;
        Ok(FastPath { thread, programs, status })
    }

    /// Sets the links by which packets leave with the addresses of pods: uplinks and tunnels.
    pub fn set_links(&self, names: Vec<String>) {
        if let Err(error) = self.thread.send(names) {
            warn!(%error, "new devices get no programs");
        }
    }

    /// The next packet of each connection takes the normal path. Call it after rules or connections were changed.
    pub fn forget_flows(&self) {
        if let Err(error) = locked(&self.programs).forget_flows() {
            warn!(%error, "connections that policies no longer allow can last one second longer");
        }
    }

    /// The state.
    pub fn status(&self) -> Status {
        let mut status = locked(&self.status).clone();
        if let Ok((to_pods, to_nodes)) = locked(&self.programs).redirected() {
            (status.to_pods, status.to_nodes) = (to_pods, to_nodes);
        }
        status
    }
}
