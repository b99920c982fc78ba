//! Addresses that nobody gets without asking for them by name.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::Deserialize;

use super::record::Value;
use super::utilization::size;

/// The networks of all reservations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reservations(Vec<IpNet>);

impl Reservations {
    /// These networks.
    pub fn new(networks: impl IntoIterator<Item = IpNet>) -> Reservations {
        Reservations(networks.into_iter().map(|network| network.trunc()).collect())
    }

    /// Whether an address is reserved.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(&ip))
    }

    /// How many addresses of a network are reserved.
    pub(super) fn size_within(&self, network: IpNet) -> u128 {
        let cut = self.0.iter().filter_map(|reserved| {
            match (network.contains(reserved), reserved.contains(&network)) {
                (true, _) => Some(*reserved),
                (_, true) => Some(network),
                _ => None,
            }
        });
        // Networks either hold each other or have nothing in common.
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

/// An object `IPReservation`, as far as it matters.
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
    /// Its networks. A single address is a network of one.
    pub(super) fn networks(&self) -> Result<Vec<IpNet>, String> {
        let read = |text: &String| {
            let address = || text.parse::<IpAddr>().map(IpNet::from).ok();
            text.parse().ok().or_else(address).ok_or_else(|| format!("{text:?} is no network"))
        };
        self.spec.reserved_cidrs.iter().map(read).collect()
    }
}

impl Value for Reservation {
    fn decode(bytes: &[u8]) -> Result<Reservation, String> {
        serde_json::from_slice(bytes).map_err(|error| error.to_string())
    }

    /// We only read them.
    fn encode(&self) -> Result<Vec<u8>, String> {
        Err("reservations are not written by us".into())
    }

    fn is_deleted(&self) -> bool {
        false
    }
}
