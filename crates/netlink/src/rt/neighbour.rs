//! Neighbours (`linux/neighbour.h`): the hardware addresses of IP addresses on a link (ARP and NDP tables), and the
//! forwarding database (FDB) of a VXLAN link: the node behind each hardware address. Both use the same messages.

use std::net::IpAddr;

use podwire_ip::IpFamily;

use super::address_family;
use super::link::mac_text;
use crate::error::{found, Result};
use crate::message::{Frame, Message};
use crate::socket::Socket;

const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NDA_IFINDEX: u16 = 8;
const NTF_SELF: u8 = 1 << 1;
/// The entry does not expire (`NUD_PERMANENT`).
const PERMANENT: u16 = 0x80;
/// `struct ndmsg`: family, padding, link, state, flags, type.
const HEADER: usize = 12;

/// An entry of a link's neighbour table, or of its forwarding database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Neighbour {
    /// The link's index.
    pub link: u32,
    /// The neighbour's address; in a forwarding database, the node behind the hardware address.
    pub ip: IpAddr,
    /// The hardware address; `None` while the kernel resolves it.
    pub mac: Option<[u8; 6]>,
    /// Whether it is permanent and not learned.
    pub permanent: bool,
}

impl Neighbour {
    /// A permanent entry.
    pub fn permanent(link: u32, ip: IpAddr, mac: [u8; 6]) -> Neighbour {
        Neighbour { link, ip, mac: Some(mac), permanent: true }
    }

    fn encode(&self, kind: u16, flags: u16, table: Table) -> Message {
        let mac = self.mac.map_or("(unresolved)".into(), |mac| mac_text(&mac));
        let verb = if kind == libc::RTM_DELNEIGH { "delete" } else { "add" };
        let doing = match table {
            Table::Addresses => format!("{verb} neighbour {} at {mac}", self.ip),
            Table::Forwarding => format!("{verb} forwarding entry {mac} behind {}", self.ip),
        };
        let mut head = [0; HEADER];
        head[0] = table.family(&self.ip);
        head[4..8].copy_from_slice(&self.link.to_ne_bytes());
        head[8..10].copy_from_slice(&PERMANENT.to_ne_bytes());
        head[10] = if table == Table::Forwarding { NTF_SELF } else { 0 };
        let message = Message::new(kind, flags, doing).raw(&head).ip(NDA_DST, self.ip);
        message.maybe(self.mac, |m, mac| m.bytes(NDA_LLADDR, &mac))
    }

    /// A message that adds the entry or replaces the one with the same key.
    pub fn replace(&self, table: Table) -> Message {
        self.encode(libc::RTM_NEWNEIGH, super::REPLACE, table)
    }

    /// A message that deletes the entry.
    pub fn delete(&self, table: Table) -> Message {
        self.encode(libc::RTM_DELNEIGH, 0, table)
    }

    /// Reads an entry from `RTM_NEWNEIGH` (or `RTM_DELNEIGH`); `None` for one without an IP address (of a bridge).
    pub fn read(frame: Frame<'_>) -> Option<Neighbour> {
        let link = link_of(frame)?;
        let state = u16::from_ne_bytes([*frame.body.get(8)?, *frame.body.get(9)?]);
        let (mut ip, mut mac) = (None, None);
        for attr in frame.attrs(HEADER) {
            match attr.kind {
                NDA_DST => ip = attr.ip(),
                NDA_LLADDR => mac = attr.value.try_into().ok(),
                _ => {}
            }
        }
        Some(Neighbour { link, ip: ip?, mac, permanent: state & PERMANENT != 0 })
    }
}

/// The link of a notice about a neighbour; `None` for other notices.
pub fn link_of(frame: Frame<'_>) -> Option<u32> {
    if frame.kind != libc::RTM_NEWNEIGH && frame.kind != libc::RTM_DELNEIGH {
        return None;
    }
    Some(u32::from_ne_bytes(frame.body.get(4..8)?.try_into().ok()?))
}

/// A table of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// From IP address to hardware address.
    Addresses,
    /// From hardware address to the node behind it.
    Forwarding,
}

impl Table {
    fn family(self, ip: &IpAddr) -> u8 {
        match self {
            Table::Addresses => address_family(IpFamily::of(*ip)),
            Table::Forwarding => libc::AF_BRIDGE as u8,
        }
    }
}

/// The neighbours of a link, of one family.
pub fn list(route: &mut Socket, link: u32, family: IpFamily) -> Result<Vec<Neighbour>> {
    dump(route, link, address_family(family), "list neighbours of")
}

/// The entry of an address on a link, if the kernel has one.
pub fn find(route: &mut Socket, link: u32, ip: IpAddr) -> Result<Option<Neighbour>> {
    let mut head = [0; HEADER];
    head[0] = address_family(IpFamily::of(ip));
    head[4..8].copy_from_slice(&link.to_ne_bytes());
    let doing = format!("look up neighbour {ip} on link number {link}");
    let message = Message::new(libc::RTM_GETNEIGH, 0, doing).raw(&head).ip(NDA_DST, ip);
    found(route.query(message, Neighbour::read))
}

/// The forwarding database of a VXLAN link.
pub fn forwarding(route: &mut Socket, link: u32) -> Result<Vec<Neighbour>> {
    dump(route, link, libc::AF_BRIDGE as u8, "read the forwarding database of")
}

fn dump(route: &mut Socket, link: u32, family: u8, verb: &str) -> Result<Vec<Neighbour>> {
    let mut head = [0; HEADER];
    head[0] = family;
    let message = Message::new(libc::RTM_GETNEIGH, 0, format!("{verb} link number {link}"))
        .raw(&head)
        .u32(NDA_IFINDEX, link);
    // Kernels before 4.20 do not filter.
    let mut all = route.list(message, Neighbour::read)?;
    all.retain(|one| one.link == link);
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Frames;

    #[test]
    fn an_entry_reads_back_as_it_was_written() {
        let entry = Neighbour::permanent(7, "10.244.2.0".parse().unwrap(), [2, 0, 0, 0, 0, 9]);
        for table in [Table::Addresses, Table::Forwarding] {
            let bytes = entry.replace(table).into_bytes();
            let frame = Frames::new(&bytes).next().unwrap();
            assert_eq!(Neighbour::read(frame), Some(entry));
            assert_eq!(link_of(frame), Some(7));
        }
        assert_eq!(
            entry.delete(Table::Forwarding).doing(),
            "delete forwarding entry 02:00:00:00:00:09 behind 10.244.2.0"
        );
    }
}
