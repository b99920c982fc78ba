//! What kube-proxy left in the kernel.

use std::fmt;

use podwire_ip::IpFamily;
use podwire_netlink::nft::{self, Table};
use podwire_netlink::Socket;

use super::names::{DEVICE, TABLES};
use super::{iptables_legacy, iptables_nft, ipvs};
use crate::{Error, Result};

/// Objects of kube-proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leftover {
    /// A table of nftables mode.
    Table(Table),
    /// Chains of iptables-nft in a table.
    Chains(Table, Vec<String>),
    /// Chains of iptables-legacy in a table. They are not removed.
    LegacyChains(IpFamily, &'static str, Vec<String>),
    /// The device of ipvs mode, with the number of virtual services at its addresses.
    Device(usize),
}

impl Leftover {
    /// Whether [`remove`](super::remove) removes it.
    pub fn is_removable(&self) -> bool {
        !matches!(self, Leftover::LegacyChains(..))
    }
}

impl fmt::Display for Leftover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Leftover::Table(table) => write!(f, "table {table}"),
            Leftover::Chains(table, chains) => {
                write!(f, "{} of iptables-nft in table {table}", count(chains))
            }
            Leftover::LegacyChains(family, table, chains) => {
                let program = match family {
                    IpFamily::V4 => "iptables-legacy",
                    IpFamily::V6 => "ip6tables-legacy",
                };
                write!(f, "{} of {program} in table {table}", count(chains))
            }
            Leftover::Device(0) => write!(f, "device {DEVICE}"),
            Leftover::Device(services) => write!(f, "device {DEVICE} with {services} IPVS services"),
        }
    }
}

/// `chain KUBE-SERVICES` or `12 chains, KUBE-SERVICES among them,`.
fn count(chains: &[String]) -> String {
    match chains {
        [one] => format!("chain {one}"),
        _ => {
            format!("{} chains, {} among them,", chains.len(), chains.first().map_or("none", String::as_str))
        }
    }
}

/// Finds all of it.
pub fn find(nft: &mut Socket, route: &mut Socket) -> Result<Vec<Leftover>> {
    let mut found = Vec::new();
    for table in TABLES {
        if nft::has_table(nft, &table)? {
            found.push(Leftover::Table(table));
        }
    }
    let chains = iptables_nft::find(nft)?;
    found.extend(chains.into_iter().map(|found| Leftover::Chains(found.table, found.chains)));
    for family in IpFamily::ALL {
        let tables = iptables_legacy::find(family).map_err(Error::LegacyIptables)?;
        let leftover = |(table, chains)| Leftover::LegacyChains(family, table, chains);
        found.extend(tables.into_iter().map(leftover));
    }
    found.extend(ipvs::find(route)?.map(|mode| Leftover::Device(mode.services.len())));
    Ok(found)
}
