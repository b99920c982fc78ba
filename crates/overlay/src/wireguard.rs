//! wireguard: packets between pods travel encrypted in UDP between their nodes.
//!
//! WireGuard selects the peer of an outgoing packet, and accepts incoming packets, by the allowed addresses of each
//! peer. So there is one route for each network of the cluster and none for single peers. A node that lost its key
//! returns with a new one; the next reconcile removes the old key.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use base64::prelude::{Engine, BASE64_STANDARD as BASE64};
use ipnet::IpNet;
use podwire_fs::FileError;
use podwire_ip::IpFamily;
use podwire_kernel::tunnel::{Driver, Tunnel};
use podwire_netlink::wireguard::{Key, Peer as WireguardPeer};

use crate::backend::Backend;
use crate::cluster::{Cluster, LocalNode, Peer};
use crate::desired::{DesiredRoute, DesiredState, Device, Egress, WireguardConfig};
use crate::error::{Error, Result};
use crate::ownership::ALIAS;
use crate::peers;
use crate::report::UnreachablePeer;
use crate::route_lookup::RouteLookup;

/// The overhead of WireGuard and UDP over IPv6, which is larger than over IPv4. Used for both, as in flannel.
const OVERHEAD: u32 = 80;

/// The devices, and the family of the addresses between nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// `flannel-wg` for IPv4 pods over IPv4, `flannel-wg-v6` for IPv6 pods over IPv6.
    #[default]
    Separate,
    /// One device, `flannel-wg`, for both families; over IPv4 if both nodes have it, else over IPv6.
    Auto,
    /// One device for both families, over IPv4.
    Ipv4,
    /// One device for both families, over IPv6.
    Ipv6,
}

/// Encrypted packets in UDP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wireguard {
    /// The devices and the outer family.
    pub mode: Mode,
    /// This node's private key; see [`private_key`].
    pub private_key: Key,
    /// An additional secret that all nodes share.
    pub preshared_key: Option<Key>,
    /// The UDP port of `flannel-wg`.
    pub port: u16,
    /// The UDP port of `flannel-wg-v6`.
    pub port_v6: u16,
    /// Seconds between keepalive packets, which keep NAT mappings alive; 0 disables them.
    pub keepalive: u16,
    /// The MTU of the network between the nodes; `None` is the uplink's MTU.
    pub mtu: Option<u32>,
}

impl Wireguard {
    /// This private key, and flannel's defaults otherwise.
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

    fn devices(&self) -> Vec<DeviceSpec> {
        use IpFamily::{V4, V6};
        match self.mode {
            Mode::Separate => vec![
                DeviceSpec { name: "flannel-wg", port: self.port, inner: &[V4], outer: &[V4] },
                DeviceSpec { name: "flannel-wg-v6", port: self.port_v6, inner: &[V6], outer: &[V6] },
            ],
            Mode::Auto => vec![self.shared_device(&IpFamily::ALL)],
            Mode::Ipv4 => vec![self.shared_device(&[V4])],
            Mode::Ipv6 => vec![self.shared_device(&[V6])],
        }
    }

    fn shared_device(&self, outer: &'static [IpFamily]) -> DeviceSpec {
        DeviceSpec { name: "flannel-wg", port: self.port, inner: &IpFamily::ALL, outer }
    }

    fn peer(
        &self,
        device: &DeviceSpec,
        local: &LocalNode,
        peer: &Peer,
        allowed: Vec<IpNet>,
    ) -> Result<WireguardPeer, String> {
        let families = device.outer.iter().filter(|family| local.subnet(**family).is_some());
        let Some(subnet) = families.filter_map(|family| peer.subnet(*family)).next() else {
            return Err("it has no address of a family that this node has".into());
        };
        // With one device for both families, a peer may have published its key with either subnet.
        let endpoint = subnet.wireguard.or(peer.subnets.iter().find_map(|subnet| subnet.wireguard));
        let Some(endpoint) = endpoint else { return Err("it has not published its WireGuard key".into()) };
        Ok(WireguardPeer {
            public_key: endpoint.public_key,
            preshared_key: self.preshared_key.unwrap_or_default(),
            endpoint: Some(SocketAddr::new(subnet.address, endpoint.port)),
            keepalive: self.keepalive,
            allowed: allowed.iter().map(|net| (net.network(), net.prefix_len())).collect(),
        })
    }
}

/// One WireGuard device.
struct DeviceSpec {
    name: &'static str,
    port: u16,
    /// The families of pods that use it.
    inner: &'static [IpFamily],
    /// The families of node addresses that it uses, in order of preference.
    outer: &'static [IpFamily],
}

impl Backend for Wireguard {
    fn name(&self) -> &'static str {
        "wireguard"
    }

    fn mtu(&self, local: &LocalNode) -> u32 {
        let underlay = self.mtu.or(local.subnets.iter().map(|subnet| subnet.uplink.mtu).min());
        underlay.unwrap_or(0).saturating_sub(OVERHEAD)
    }

    fn desired(&self, cluster: &Cluster, _: &RouteLookup) -> DesiredState {
        let mut desired = DesiredState::default();
        for device in self.devices() {
            let local: Vec<_> =
                device.inner.iter().filter_map(|family| cluster.local.subnet(*family)).collect();
            if local.is_empty() {
                continue;
            }
            let mut allowed: BTreeMap<&str, (&Peer, Vec<IpNet>)> = BTreeMap::new();
            for subnet in &local {
                for (peer, subnet) in peers::without_conflicts(cluster, subnet, &mut desired.unreachable) {
                    let entry = allowed.entry(&peer.name).or_insert((peer, Vec::new()));
                    entry.1.push(subnet.pod_cidr.trunc());
                }
            }
            let (mut peers, mut keys) = (Vec::new(), HashSet::new());
            for (peer, nets) in allowed.into_values() {
                match self.peer(&device, &cluster.local, peer, nets) {
                    Ok(end) if !keys.insert(end.public_key) => {
                        let reason = "it has published the WireGuard key of another node";
                        desired.unreachable.push(UnreachablePeer::new(&peer.name, reason));
                    }
                    Ok(end) => peers.push(end),
                    Err(reason) => desired.unreachable.push(UnreachablePeer::new(&peer.name, reason)),
                }
            }
            let tunnel = Tunnel {
                name: device.name.into(),
                driver: Driver::Wireguard,
                mtu: self.mtu(&cluster.local),
                mac: None,
                alias: ALIAS,
            };
            let addresses: Vec<IpAddr> = local.iter().map(|subnet| subnet.pod_cidr.network()).collect();
            let wireguard = Some(WireguardConfig { private_key: self.private_key, port: device.port, peers });
            let egress = Egress::Tunnel(desired.devices.len());
            desired.devices.push(Device { wireguard, ..Device::new(tunnel, addresses) });
            let has_family = |net: &&IpNet| {
                local.iter().any(|subnet| IpFamily::of_net(subnet.pod_cidr) == IpFamily::of_net(**net))
            };
            let networks = cluster.networks.iter().filter(has_family);
            desired.routes.extend(networks.map(|net| DesiredRoute {
                to: net.trunc(),
                via: None,
                egress,
                onlink: false,
            }));
        }
        desired
    }
}

/// Reads the node's private key from a file that only root can read, or creates a key and the file. The format is that
/// of `wg genkey`: base64.
pub fn private_key(path: &Path) -> Result<Key> {
    match fs::read_to_string(path) {
        Ok(text) => parse_key(&text).ok_or_else(|| Error::BadKey { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut bytes = podwire_netlink::sys::random::<32>()
                .map_err(FileError::at("get random bytes for the key file", path))?;
            // Curve25519 requires these bits of a private key to be set or clear.
            bytes[0] &= 248;
            bytes[31] = bytes[31] & 127 | 64;
            if let Some(dir) = path.parent() {
                fs::create_dir_all(dir).map_err(FileError::at("create directory", dir))?;
            }
            let text = format!("{}\n", key_text(Key(bytes)));
            podwire_fs::replace(path, text.as_bytes(), 0o400)
                .map_err(FileError::at("write key file", path))?;
            Ok(Key(bytes))
        }
        Err(error) => Err(FileError::at("read key file", path)(error).into()),
    }
}

/// Parses a key in base64, as `wg` and flannel write it.
pub fn parse_key(text: &str) -> Option<Key> {
    let bytes = BASE64.decode(text.trim()).ok()?;
    Some(Key(bytes.try_into().ok()?))
}

/// A key in base64, as `wg` and flannel write it.
pub fn key_text(key: Key) -> String {
    BASE64.encode(key.0)
}
