//! What WireGuard is told: key, port, peers.

use std::collections::{HashMap, HashSet};

use podwire_kernel::{Host, Link};
use podwire_netlink::wireguard::{Key, Peer, Wireguard};

use crate::desired::{Device, WireguardConfig};
use crate::{Report, Result};

/// Makes a WireGuard device know what is wanted; returns its public key. Other devices have none.
pub(super) fn apply(host: &Host, device: &Device, link: &Link, report: &mut Report) -> Result<Option<Key>> {
    let Some(WireguardConfig { private_key, port, peers }) = &device.wireguard else { return Ok(None) };
    let mut wireguard = host.run(Wireguard::open)??;
    let found = wireguard.read(link.index)?;
    let mut messages = Vec::new();
    if (found.private_key, found.port) != (*private_key, *port) {
        messages.push(wireguard.set_device(link.index, *private_key, *port));
    }
    let there: HashMap<Key, &Peer> = found.peers.iter().map(|peer| (peer.public_key, peer)).collect();
    // The old key of a node goes before the new one gets its addresses.
    let wanted: HashSet<Key> = peers.iter().map(|peer| peer.public_key).collect();
    let strangers = found.peers.iter().filter(|peer| !wanted.contains(&peer.public_key));
    messages.extend(strangers.map(|peer| wireguard.remove_peer(link.index, peer.public_key)));
    let missing =
        peers.iter().filter(|peer| there.get(&peer.public_key).is_none_or(|found| differs(peer, found)));
    messages.extend(missing.map(|peer| wireguard.set_peer(link.index, peer)));
    if messages.is_empty() {
        return Ok(Some(found.public_key));
    }
    report.changed.extend(messages.iter().map(|message| message.doing().to_string()));
    report.failed.extend(wireguard.batch_each(messages)?.into_iter().map(|(_, error)| error.into()));
    Ok(Some(wireguard.read(link.index)?.public_key))
}

/// The order of ranges means nothing. The address does: WireGuard follows a peer to wherever its packets come from, but what
/// the peer has told of itself counts (it may have moved and be silent).
fn differs(wanted: &Peer, found: &Peer) -> bool {
    let sorted = |peer: &Peer| {
        let mut allowed = peer.allowed.clone();
        allowed.sort();
        Peer { allowed, ..peer.clone() }
    };
    sorted(wanted) != sorted(found)
}
