//! The configuration of a WireGuard device: key, port and peers.

use std::collections::{HashMap, HashSet};

use podwire_kernel::{Host, Link};
use podwire_netlink::wireguard::{Key, Peer, Wireguard};

use crate::desired::{Device, WireguardConfig};
use crate::error::Result;
use crate::report::Report;

/// Configures a WireGuard device as desired and returns its public key; `None` for other devices.
pub(super) fn apply(host: &Host, device: &Device, link: &Link, report: &mut Report) -> Result<Option<Key>> {
    let Some(WireguardConfig { private_key, port, peers }) = &device.wireguard else { return Ok(None) };
    let mut wireguard = host.run(Wireguard::open)??;
    let found = wireguard.read(link.index)?;
    let mut messages = Vec::new();
    if (found.private_key, found.port) != (*private_key, *port) {
        messages.push(wireguard.set_device(link.index, *private_key, *port));
    }
    let present: HashMap<Key, &Peer> = found.peers.iter().map(|peer| (peer.public_key, peer)).collect();
    // Remove the old key of a node before its new key gets the allowed addresses.
    let desired: HashSet<Key> = peers.iter().map(|peer| peer.public_key).collect();
    let obsolete = found.peers.iter().filter(|peer| !desired.contains(&peer.public_key));
    messages.extend(obsolete.map(|peer| wireguard.remove_peer(link.index, peer.public_key)));
    let needed =
        peers.iter().filter(|peer| present.get(&peer.public_key).is_none_or(|found| differs(peer, found)));
    messages.extend(needed.map(|peer| wireguard.set_peer(link.index, peer)));
    if messages.is_empty() {
        return Ok(Some(found.public_key));
    }
    report.changed.extend(messages.iter().map(|message| message.doing().to_string()));
    report.failed.extend(wireguard.batch_each(messages)?.into_iter().map(|(_, error)| error.into()));
    Ok(Some(wireguard.read(link.index)?.public_key))
}

/// Compares two peers without regard to the order of the allowed addresses. The endpoint counts: WireGuard follows a
/// peer to the source of its packets, but the published address takes precedence, because a node may have moved and be
/// silent.
fn differs(desired: &Peer, found: &Peer) -> bool {
    let sorted = |peer: &Peer| {
        let mut allowed = peer.allowed.clone();
        allowed.sort();
        Peer { allowed, ..peer.clone() }
    };
    sorted(desired) != sorted(found)
}
