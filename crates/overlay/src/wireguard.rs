//! wireguard: packets between pods travel encrypted in UDP between their nodes.
//!
//! Which peer a packet goes to, and from which it may come, follows from the ranges that WireGuard is told for each peer; so
//! there is one route for each of the cluster's networks and none for each peer. A node that lost its key comes back with
//! another: the old one goes with the next comparison.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use base64::prelude::{Engine, BASE64_STANDARD as BASE64};
use ipnet::IpNet;
use podwire_ip::IpFamily;
use podwire_kernel::tunnel::{Driver, Tunnel};
use podwire_netlink::wireguard::{Key, Peer as End};

use crate::desired::{Device, WireguardConfig};
use crate::{
    sieve, Backend, Cluster, DesiredRoute, DesiredState, Egress, Error, LocalNode, Peer, Result, RouteLookup,
    UnreachablePeer, ALIAS,
};

/// WireGuard and UDP in IPv6, the larger of the two, whatever is used: as in flannel.
const OVERHEAD: u32 = 80;

/// Which devices there are, and by which addresses peers are reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// `flannel-wg` for IPv4 pods over IPv4, `flannel-wg-v6` for IPv6 pods over IPv6.
    #[default]
    Separate,
    /// One device, `flannel-wg`, for both; over IPv4 where both nodes have it, else over IPv6.
    Auto,
    /// One device for both, over IPv4.
    Ipv4,
    /// One device for both, over IPv6.
    Ipv6,
}

/// Encrypted packets in UDP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wireguard {
    /// Which devices there are.
    pub mode: Mode,
    /// This node's secret; see [`private_key`].
    pub private_key: Key,
    /// A secret that all nodes share, on top.
    pub preshared_key: Option<Key>,
    /// UDP port of `flannel-wg`.
    pub port: u16,
    /// UDP port of `flannel-wg-v6`.
    pub port_v6: u16,
    /// Seconds between packets that keep a way through a NAT open; 0 for none.
    pub keepalive: u16,
    /// The MTU of the network between the nodes, if it is not that of the uplink.
    pub mtu: Option<u32>,
}

impl Wireguard {
    /// With this secret, and flannel's defaults otherwise.
    pub fn new(private_key: Key) -> Wireguard {
        Wireguard {
            mode: Mode::Separate,
            private_key,
            preshared_key: None,
            port: 51820,
            port_v6: 51821,
            keepalive: 0,
            mtu: None,
        }
    }

    fn lanes(&self) -> Vec<Lane> {
        match self.mode {
            Mode::Separate => vec![
                Lane {
                    name: "flannel-wg",
                    port: self.port,
                    families: &[IpFamily::V4],
                    over: &[IpFamily::V4],
                },
                Lane {
                    name: "flannel-wg-v6",
                    port: self.port_v6,
                    families: &[IpFamily::V6],
                    over: &[IpFamily::V6],
                },
            ],
            Mode::Auto => vec![self.single(&IpFamily::ALL)],
            Mode::Ipv4 => vec![self.single(&[IpFamily::V4])],
            Mode::Ipv6 => vec![self.single(&[IpFamily::V6])],
        }
    }

    fn single(&self, over: &'static [IpFamily]) -> Lane {
        Lane { name: "flannel-wg", port: self.port, families: &IpFamily::ALL, over }
    }

    fn end(&self, lane: &Lane, own: &LocalNode, peer: &Peer, allowed: Vec<IpNet>) -> Result<End, String> {
        let sides = lane
            .over
            .iter()
            .filter(|family| own.subnet(**family).is_some())
            .filter_map(|family| peer.subnet(*family));
        let Some(side) = sides.into_iter().next() else {
            return Err("it has no address of a family that this node has too".into());
        };
        // With one device for both families, a peer may have told its key with either.
        let key = side.wireguard.or(peer.subnets.iter().find_map(|side| side.wireguard));
        let Some(known) = key else { return Err("it has not told its WireGuard key".into()) };
        Ok(End {
            public_key: known.public_key,
            preshared_key: self.preshared_key.unwrap_or_default(),
            endpoint: Some(SocketAddr::new(side.address, known.port)),
            keepalive: self.keepalive,
            allowed: allowed.iter().map(|net| (net.network(), net.prefix_len())).collect(),
        })
    }
}

/// One device.
struct Lane {
    name: &'static str,
    port: u16,
    /// Families of pods (whether IPv4) that go through it.
    families: &'static [IpFamily],
    /// Families of addresses over which peers are reached, the best first.
    over: &'static [IpFamily],
}

impl Backend for Wireguard {
    fn name(&self) -> &'static str {
        "wireguard"
    }

    fn mtu(&self, own: &LocalNode) -> u32 {
        let underlay = self.mtu.or(own.subnets.iter().map(|side| side.uplink.mtu).min());
        underlay.unwrap_or(0).saturating_sub(OVERHEAD)
    }

    fn desired(&self, cluster: &Cluster, _: &RouteLookup) -> DesiredState {
        let mut wanted = DesiredState::default();
        for lane in self.lanes() {
            let own: Vec<_> =
                lane.families.iter().filter_map(|family| cluster.local.subnet(*family)).collect();
            if own.is_empty() {
                continue;
            }
            let mut allowed: BTreeMap<&str, (&Peer, Vec<IpNet>)> = BTreeMap::new();
            for side in &own {
                for (peer, side) in sieve::accepted(cluster, side, &mut wanted.unreachable) {
                    let entry = allowed.entry(&peer.name).or_insert((peer, Vec::new()));
                    entry.1.push(side.pod_cidr.trunc());
                }
            }
            let (mut peers, mut keys) = (Vec::new(), HashSet::new());
            for (peer, nets) in allowed.into_values() {
                match self.end(&lane, &cluster.local, peer, nets) {
                    Ok(end) if !keys.insert(end.public_key) => {
                        let why = "it has told the WireGuard key of another node";
                        wanted.unreachable.push(UnreachablePeer::new(&peer.name, why));
                    }
                    Ok(end) => peers.push(end),
                    Err(why) => wanted.unreachable.push(UnreachablePeer::new(&peer.name, why)),
                }
            }
            let tunnel = Tunnel {
                name: lane.name.into(),
                driver: Driver::Wireguard,
                mtu: self.mtu(&cluster.local),
                mac: None,
                alias: ALIAS,
            };
            let addresses: Vec<IpAddr> = own.iter().map(|side| side.pod_cidr.network()).collect();
            let wireguard = Some(WireguardConfig { private_key: self.private_key, port: lane.port, peers });
            let egress = Egress::Tunnel(wanted.devices.len());
            wanted.devices.push(Device { wireguard, ..Device::new(tunnel, addresses) });
            let networks = cluster
                .networks
                .iter()
                .filter(|net| own.iter().any(|side| side.pod_cidr.addr().is_ipv4() == net.addr().is_ipv4()));
            wanted.routes.extend(networks.map(|net| DesiredRoute {
                to: net.trunc(),
                via: None,
                egress,
                onlink: false,
            }));
        }
        wanted
    }
}

/// The node's secret, kept in a file that only root can read; a new one if there is none. The content is that of `wg
/// genkey`: base64.
pub fn private_key(path: &Path) -> Result<Key> {
    let failed = |doing, reason: String| Error::KeyFile { doing, path: path.to_owned(), reason };
    match fs::read_to_string(path) {
        Ok(text) => parse_key(&text).ok_or_else(|| {
            failed("read the key in", "not 32 bytes in base64; delete it to get a new one".into())
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let mut bytes = podwire_netlink::sys::random::<32>()
                .map_err(|error| failed("make a key for", error.to_string()))?;
            // Curve25519's rule for secrets.
            bytes[0] &= 248;
            bytes[31] = bytes[31] & 127 | 64;
            write_secret(path, &format!("{}\n", key_text(Key(bytes))))
                .map_err(|error| failed("write the key to", error.to_string()))?;
            Ok(Key(bytes))
        }
        Err(error) => Err(failed("read the key in", error.to_string())),
    }
}

/// Whole or not at all, and never readable by others.
fn write_secret(path: &Path, text: &str) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let new = path.with_extension("new");
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o400).open(&new)?;
    file.write_all(text.as_bytes())?;
    fs::rename(new, path)
}

/// A key in base64, as `wg` and flannel write it.
pub fn parse_key(text: &str) -> Option<Key> {
    let bytes = BASE64.decode(text.trim()).ok()?;
    Some(Key(bytes.try_into().ok()?))
}

/// A key as `wg` and flannel write it.
pub fn key_text(key: Key) -> String {
    BASE64.encode(key.0)
}
