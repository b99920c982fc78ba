//! Reserved addresses: they are assigned only on explicit request.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::Deserialize;

use podwire_ip::to_u128;

use super::record::Value;

/// The networks of all reservations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reservations(Vec<IpNet>);

impl Reservations {
    /// Reserves networks.
    pub fn new(networks: impl IntoIterator<Item = IpNet>) -> Reservations {
        Reservations(networks.into_iter().map(|network| network.trunc()).collect())
    }

    /// Whether an address is reserved.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(&ip))
    }

    /// The number of reserved addresses in a network.
    pub(super) fn size_within(&self, network: IpNet) -> u128 {
        let cut = self.0.iter().filter_map(|reserved| {
            if network.contains(reserved) {
                Some(*reserved)
            } else {
                reserved.contains(&network).then_some(network)
            }
        });
        // Two networks are nested or disjoint.
        IpNet::aggregate(&cut.collect()).into_iter().map(size).fold(0, u128::saturating_add)
    }

    /// The largest reservation that covers the whole network.
    pub(super) fn covering(&self, network: IpNet) -> Option<IpNet> {
        self.0
            .iter()
            .filter(|reserved| reserved.contains(&network))
            .min_by_key(|net| net.prefix_len())
            .copied()
    }
}

/// The number of addresses of a network. It saturates for `::/0`.
pub(super) fn size(cidr: IpNet) -> u128 {
    (to_u128(cidr.broadcast()) - to_u128(cidr.network())).saturating_add(1)
}

/// The used part of an `IPReservation` object.
#[derive(Debug, Deserialize)]
pub(super) struct Reservation {
    #[serde(default)]
    spec: Spec,
}

#[derive(Debug, Default, Deserialize)]
struct Spec {
    #[serde(rename = "reservedCIDRs", default)]
    reserved_cidrs: Vec<String>,
}

impl Reservation {
    /// Its networks. A single address is a network of one address.
    pub(super) fn networks(&self) -> Result<Vec<IpNet>, String> {
        let read = |text: &String| {
            let address = || text.parse::<IpAddr>().map(IpNet::from).ok();
            text.parse().ok().or_else(address).ok_or_else(|| format!("{text:?} is not a network"))
        };
        self.spec.reserved_cidrs.iter().map(read).collect()
    }
}

impl Value for Reservation {
    fn decode(bytes: &[u8]) -> Result<Reservation, String> {
        serde_json::from_slice(bytes).map_err(|error| error.to_string())
    }

    /// Reservations are only read.
    fn encode(&self) -> Result<Vec<u8>, String> {
        Err("podwire does not write reservations".into())
    }

    fn is_deleted(&self) -> bool {
        false
    }
}
