//! The elements in the kernel.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use podwire_ip::IpFamily;
use podwire_netlink::nft::{self, Data};
use podwire_netlink::{Result, Socket};

use super::counted_chains::FIRST_FOR_OTHERS;
use super::elements::{insert, key, Elements};
use super::sets::{SetId, TABLE};
use crate::{Frontend, Protocol};

/// All elements of the table, except those that rules add.
pub(super) fn read(socket: &mut Socket) -> Result<Elements> {
    let mut found = Elements::new();
    for set in SetId::ALL.into_iter().filter(|set| *set != SetId::Affinity) {
        for family in IpFamily::ALL {
            for element in nft::list_elements(socket, &TABLE, &set.name(family))? {
                insert(&mut found, set, family, element);
            }
        }
    }
    Ok(found)
}

/// The endpoints of a frontend in the order of their indexes: those for all clients, and those for clients of other nodes.
pub(super) fn order(found: &Elements, frontend: &Frontend) -> [Vec<SocketAddr>; 2] {
    let family = IpFamily::of(frontend.ip);
    let prefix = key(frontend).bytes().to_vec();
    let from = (SetId::Endpoints, family, prefix.clone(), false);
    let mut by_index: [BTreeMap<u32, SocketAddr>; 2] = Default::default();
    let of_frontend = found.range(from..).take_while(|((set, of, key, _), _)| {
        *set == SetId::Endpoints && *of == family && key.starts_with(&prefix)
    });
    for ((_, _, key, _), element) in of_frontend {
        let index = key.get(prefix.len()..).and_then(|bytes| bytes.try_into().ok()).map(u32::from_ne_bytes);
        let Data::Value(value) = &element.data else { continue };
        if let (Some(index), Some(endpoint)) = (index, socket_addr(value.bytes(), family)) {
            let others = usize::from(index >= FIRST_FOR_OTHERS);
            by_index[others].insert(index, endpoint);
        }
    }
    by_index.map(|endpoints| endpoints.into_values().collect())
}

/// An address and a port, as the kernel stores them.
pub(super) fn socket_addr(bytes: &[u8], family: IpFamily) -> Option<SocketAddr> {
    let length = usize::from(family.bits() / 8);
    let ip = ip_addr(bytes.get(..length)?, family)?;
    let port = bytes.get(length..length + 2)?.try_into().ok().map(u16::from_be_bytes)?;
    Some(SocketAddr::new(ip, port))
}

/// The frontend at the start of a key.
pub(super) fn frontend(bytes: &[u8], family: IpFamily) -> Option<Frontend> {
    let length = usize::from(family.bits() / 8);
    let (ip, rest) = (ip_addr(bytes.get(..length)?, family)?, bytes.get(length..)?);
    // Each field is padded to four bytes.
    let protocol = Protocol::ALL.into_iter().find(|protocol| rest.first() == Some(&protocol.number()))?;
    let port = rest.get(4..6)?.try_into().ok().map(u16::from_be_bytes)?;
    Some(Frontend { ip, protocol, port })
}

pub(super) fn ip_addr(bytes: &[u8], family: IpFamily) -> Option<IpAddr> {
    match family {
        IpFamily::V4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        IpFamily::V6 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frontend_is_read_from_its_key() {
        for ip in ["10.96.0.1", "fd00:96::1"] {
            for protocol in Protocol::ALL {
                let written = Frontend { ip: ip.parse().unwrap(), protocol, port: 8443 };
                let family = IpFamily::of(written.ip);
                assert_eq!(frontend(key(&written).bytes(), family), Some(written));
            }
        }
    }
}
