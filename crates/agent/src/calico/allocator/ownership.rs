//! Who owns the node's blocks: the identity with which this process claims them, and whether it has them.

use std::fs;
use std::io;

use podwire_block_ipam::timestamp::Timestamp;
use podwire_block_ipam::{Error as IpamError, NodeOwner};

use super::error::Error;
use super::lease_dir::LeaseDir;
use super::state::State;
use super::warm_pool::WarmPool;

/// This process. The state directory, which one process at a time can lock, identifies it across restarts and reboots,
/// unless the directory was copied.
pub(super) fn identity(lease_dir: &LeaseDir) -> Result<NodeOwner, Error> {
    let (host, random) = ("/proc/sys/kernel/hostname", "/proc/sys/kernel/random/uuid");
    Ok(NodeOwner {
        id: lease_dir.id()?,
        host: read(host).map_err(Error::file("read", host))?,
        // A container may have none.
        machine_id: read("/etc/machine-id").unwrap_or_default(),
        boot_id: lease_dir.boot_id().to_owned(),
        run_id: read(random).map_err(Error::file("read", random))?,
        pid: std::process::id(),
        since: Timestamp::now().rfc3339(),
    })
}

fn read(path: &str) -> io::Result<String> {
    Ok(fs::read_to_string(path)?.trim_end().to_owned())
}

impl State {
    /// Records whether this process owns the node's blocks. If another one does, the warm pool is that one's: pods get
    /// the reason instead of addresses.
    pub(super) fn set_owner(&self, owned: Result<(), &IpamError>) {
        let mut inner = self.lock();
        inner.holds_node_claim = owned.is_ok();
        if let Err(error) = owned {
            inner.warm_pool = WarmPool::default();
            inner.requests.take_all().iter().for_each(|one| one.waiter.send(Err(error.clone().into())));
        }
        self.node_claim_changed.notify_all();
    }

    /// Waits until this process owns the node's blocks.
    pub(super) fn wait_for_ownership(&self) {
        drop(self.node_claim_changed.wait_while(self.lock(), |inner| !inner.holds_node_claim));
    }
}
