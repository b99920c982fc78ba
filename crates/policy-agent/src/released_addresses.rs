//! Addresses that pods no longer have, and whose connections must end before another pod gets them.
//!
//! Conntrack keeps the connections of a pod after the pod is gone. Packets of such a connection count as established, so
//! the next pod with the address would receive them whatever its policies say. Deleting the entries of one address makes
//! the kernel walk its whole table, so neither DEL nor ADD does it in the usual case: the agent reads the table once for
//! all addresses that were released, in the background. Only an ADD that gets an address before that waits for the walk.
//! Decision 0025 has the figures.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use podwire_kernel::sysctl;
use podwire_netlink::ct::{self, Connection};
use podwire_netlink::nft::Family;
use podwire_netlink::Socket;

use crate::Result;

/// The shortest time between two reads of the table.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct ReleasedAddresses {
    conntrack: Socket,
    /// Released since the agent started.
    released: BTreeSet<IpAddr>,
    /// All addresses that had connections when the agent started. The pods of some were deleted before.
    earlier: BTreeSet<IpAddr>,
    swept: Option<Instant>,
}

impl ReleasedAddresses {
    /// For the network namespace of the calling thread. `is_attached`: whether a pod has the address now.
    pub fn open(is_attached: impl Fn(&IpAddr) -> bool) -> Result<ReleasedAddresses> {
        let mut conntrack = Socket::netfilter()?;
        let mut earlier = BTreeSet::new();
        read(&mut conntrack, |connection| {
            earlier.extend(connection.addresses().filter(|ip| !is_attached(ip)));
            false
        })?;
        Ok(ReleasedAddresses { conntrack, released: BTreeSet::new(), earlier, swept: None })
    }

    /// Notes that pods no longer have these addresses.
    pub fn release(&mut self, addresses: impl IntoIterator<Item = IpAddr>) {
        self.released.extend(addresses);
    }

    /// Deletes the connections that a pod would inherit with these addresses. Returns whether there could be any.
    pub fn before_reuse(&mut self, addresses: &[IpAddr]) -> Result<bool> {
        let inherits = |ip: &&IpAddr| self.released.contains(ip) || self.earlier.contains(ip);
        let inheriting: Vec<IpAddr> = addresses.iter().filter(inherits).copied().collect();
        if inheriting.is_empty() || is_empty() {
            return Ok(false);
        }
        ct::delete_of_addresses(&mut self.conntrack, &inheriting)?;
        for ip in &inheriting {
            self.released.remove(ip);
            self.earlier.remove(ip);
        }
        Ok(true)
    }

    /// Deletes the connections of all addresses that were released, unless the last sweep was a moment ago.
    pub fn sweep(&mut self) -> Result<()> {
        if self.released.is_empty() || self.swept.is_some_and(|at| at.elapsed() < SWEEP_INTERVAL) {
            return Ok(());
        }
        let released = std::mem::take(&mut self.released);
        let of_released = |one: &Connection| one.addresses().any(|ip| released.contains(&ip));
        let swept = read(&mut self.conntrack, of_released)
            .and_then(|found| Ok(ct::forget(&mut self.conntrack, &found)?));
        self.swept = Some(Instant::now());
        match &swept {
            Ok(()) => self.earlier.retain(|ip| !released.contains(ip)),
            Err(_) => self.released = released,
        }
        swept
    }
}

/// Whether the namespace has no connections. The file does not exist if conntrack is not loaded; a request would load it.
fn is_empty() -> bool {
    sysctl::read("net/netfilter/nf_conntrack_count").map_or(true, |count| count == "0")
}

/// The connections of both families for which `wanted` is true.
fn read(conntrack: &mut Socket, mut wanted: impl FnMut(&Connection) -> bool) -> Result<Vec<Connection>> {
    let mut all = Vec::new();
    if !is_empty() {
        for family in [Family::Ip, Family::Ip6] {
            all.extend(ct::list(conntrack, family, &mut wanted)?);
        }
    }
    Ok(all)
}
