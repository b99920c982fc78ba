//! Kernel notifications for the route reconcilers of both modes.

use std::os::fd::BorrowedFd;

use podwire_kernel::Host;
use podwire_overlay::{Uplink, Watch};
use tracing::debug;

use crate::Result;

/// Follows the agent's devices, routes and rules, and the uplinks.
#[derive(Default)]
pub(crate) struct KernelWatch {
    watch: Option<Watch>,
    uplinks: Vec<Uplink>,
}

impl KernelWatch {
    /// Follows these devices and uplinks from now on; without an uplink, every link that could become one. Call it
    /// before the kernel is read, so that no change is missed. Returns whether the uplinks changed.
    pub(crate) fn follow(&mut self, host: &mut Host, devices: &[&str], uplinks: &[Uplink]) -> Result<bool> {
        if uplinks == self.uplinks && self.watch.is_some() {
            return Ok(false);
        }
        let names: Vec<&str> = uplinks.iter().map(|uplink| uplink.name.as_str()).collect();
        self.watch = Some(if names.is_empty() {
            Watch::for_uplinks(host)?
        } else {
            Watch::open(host, devices, &names)?
        });
        let has_moved = !self.uplinks.is_empty() && uplinks != self.uplinks;
        self.uplinks = uplinks.to_vec();
        Ok(has_moved)
    }

    /// The sockets to poll.
    pub(crate) fn event_sources(&self) -> Vec<BorrowedFd<'_>> {
        self.watch.iter().flat_map(Watch::event_sources).collect()
    }

    /// Reads the notifications. Returns whether something of the agent's was changed. After an error the sockets are
    /// closed; the next [`follow`](Self::follow) opens new ones.
    pub(crate) fn read_events(&mut self) -> Result<bool> {
        let Some(watch) = &mut self.watch else { return Ok(false) };
        let events = watch.read_events().inspect_err(|_| self.watch = None)?;
        if !events.is_empty() {
            debug!(?events, "kernel objects changed");
        }
        Ok(!events.is_empty())
    }
}
