//! Removes what kube-proxy left.

use podwire_netlink::nft;
use podwire_netlink::Socket;
use tracing::{info, warn};

use super::leftovers::{find, Leftover};
use super::{iptables_nft, ipvs, refuse_running};
use crate::{Error, Result};

/// The send buffer: a transaction of some hundred thousand chains.
const MAX_TRANSACTION: usize = 64 << 20;

/// What was removed, and what could not be.
#[derive(Debug, Default)]
pub struct Removal {
    /// What is gone.
    pub removed: Vec<Leftover>,
    /// Why the rest is still there.
    pub failures: Vec<Error>,
}

/// Removes all that is removable. Refuses while kube-proxy runs. The Services of this node must be in the kernel already.
/// Each table is one transaction: if that fails, the table is as before, and the others are removed all the same.
pub fn remove(nft: &mut Socket, route: &mut Socket) -> Result<Removal> {
    refuse_running()?;
    nft.set_send_buffer(MAX_TRANSACTION)?;
    let mut removal = Removal::default();
    for leftover in find(nft, route)?.into_iter().filter(Leftover::is_removable) {
        match remove_one(nft, route, &leftover) {
            Ok(()) => {
                info!(%leftover, "leftover of kube-proxy removed");
                removal.removed.push(leftover);
            }
            Err(error) => removal.failures.push(Error::Cleanup(leftover.to_string(), Box::new(error))),
        }
    }
    Ok(removal)
}

fn remove_one(nft: &mut Socket, route: &mut Socket, leftover: &Leftover) -> Result<()> {
    match leftover {
        Leftover::Table(table) => drop(nft::remove_table(nft, table)?),
        Leftover::Chains(table, _) => drop(iptables_nft::remove(nft, table)?),
        Leftover::Device(_) => {
            let Some(mode) = ipvs::find(route)? else { return Ok(()) };
            ipvs::remove(route, &mode)?;
            for service in &mode.services {
                info!(%service, "IPVS service of kube-proxy removed");
            }
            if mode.others > 0 {
                let count = mode.others;
                warn!(count, "IPVS services at other addresses stay: `ipvsadm -Ln` lists them");
            }
        }
        Leftover::LegacyChains(..) => {}
    }
    Ok(())
}
