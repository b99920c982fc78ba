//! DHCPv6 (RFC 8415, 3646) as a pod speaks it: one address by an identity association (IA_NA), name servers and domains.

use std::net::{IpAddr, Ipv6Addr};

use dhcproto::v6::{DhcpOption, DhcpOptions, IAAddr, Message, MessageType, OptionCode, Status, IANA, ORO};
use dhcproto::{Decodable, Decoder, Encodable};
use ipnet::{IpNet, Ipv6Net};
use sha2::{Digest, Sha512};

use crate::dialect::{Heard, Saying, Word};
use crate::grant::{Grant, Server, Times, FOREVER};
use crate::sieve;

/// The number of a pod's one identity association: its DUID is its own already.
const ASSOCIATION: u32 = 1;
const DUID_UUID: [u8; 2] = [0, 4]; // RFC 6355
const SHORTEST_LEASE: u32 = 4;

/// A pod's interface as a DHCPv6 client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// Its DUID.
    pub duid: Vec<u8>,
    /// The address that it had before.
    pub before: Option<Ipv6Addr>,
}

impl Client {
    /// A client that always has the same DUID for the same `name`, whatever its hardware address.
    pub fn named(name: &str) -> Client {
        let mut duid = DUID_UUID.to_vec();
        duid.extend(&Sha512::digest(name.as_bytes())[..16]);
        Client { duid, before: None }
    }

    /// The message for a word.
    pub fn say(&self, saying: &Saying<'_>) -> Vec<u8> {
        let kind = match saying.word {
            Word::Discover => MessageType::Solicit,
            Word::Request => MessageType::Request,
            Word::Renew => MessageType::Renew,
            Word::Rebind => MessageType::Rebind,
            Word::Release => MessageType::Release,
        };
        let [_, xid @ ..] = saying.xid.to_be_bytes();
        let mut message = Message::new_with_id(kind, xid);
        let options = message.opts_mut();
        options.insert(DhcpOption::ClientId(self.duid.clone()));
        // In hundredths of a second; it may stop at the largest number.
        let elapsed = (saying.elapsed.as_millis() / 10).min(u128::from(u16::MAX)) as u16;
        options.insert(DhcpOption::ElapsedTime(elapsed));
        if matches!(saying.word, Word::Request | Word::Renew | Word::Release) {
            options.insert(DhcpOption::ServerId(
                saying.grant.map(|grant| grant.server.id.clone()).unwrap_or_default(),
            ));
        }
        if saying.word != Word::Release {
            let opts = vec![OptionCode::DomainNameServers, OptionCode::DomainSearchList];
            options.insert(DhcpOption::ORO(ORO { opts }));
        }
        let held = match saying.grant.map(|grant| grant.address.addr()) {
            Some(IpAddr::V6(address)) => Some(address),
            _ => self.before.filter(|_| saying.word == Word::Discover),
        };
        let mut inside = DhcpOptions::new();
        if let Some(addr) = held {
            let opts = DhcpOptions::new();
            inside.insert(DhcpOption::IAAddr(IAAddr { addr, preferred_life: 0, valid_life: 0, opts }));
        }
        options.insert(DhcpOption::IANA(IANA { id: ASSOCIATION, t1: 0, t2: 0, opts: inside }));
        message.to_vec().unwrap_or_default()
    }

    /// What a message says to this client, if it says anything.
    pub fn understand(&self, packet: &[u8], xid: u32) -> Option<Heard> {
        let message = Message::decode(&mut Decoder::new(&sieve::v6(packet)?)).ok()?;
        let (options, [_, ours @ ..]) = (message.opts(), xid.to_be_bytes());
        let for_us =
            matches!(options.get(OptionCode::ClientId), Some(DhcpOption::ClientId(id)) if *id == self.duid);
        if message.xid() != ours || !for_us {
            return None;
        }
        let id = match options.get(OptionCode::ServerId) {
            Some(DhcpOption::ServerId(id)) => id.clone(),
            _ => return None,
        };
        let server = Server { id, mac: None };
        let wrap = match message.msg_type() {
            MessageType::Advertise => Heard::Offer,
            MessageType::Reply => Heard::Grant,
            _ => return None,
        };
        let is_final = message.msg_type() == MessageType::Reply;
        Some(match read(options, server.clone()) {
            Ok(grant) => wrap(grant),
            // What the holder asked for is not known there, or is not for this wire.
            Err(Trouble::Status(Status::NoBinding | Status::NotOnLink)) if is_final => {
                Heard::Refusal { server, why: "the server does not know the lease".into() }
            }
            Err(Trouble::Status(status)) => Heard::Useless(format!("the server said {status:?}")),
            Err(Trouble::Words(text)) => Heard::Useless(text),
        })
    }
}

/// Why a message gives no address.
enum Trouble {
    Status(Status),
    Words(String),
}

fn status(options: &DhcpOptions) -> Result<(), Trouble> {
    match options.get(OptionCode::StatusCode) {
        Some(DhcpOption::StatusCode(code)) if code.status != Status::Success => {
            Err(Trouble::Status(code.status))
        }
        _ => Ok(()),
    }
}

fn read(options: &DhcpOptions, server: Server) -> Result<Grant, Trouble> {
    status(options)?;
    let associations = options.get_all(OptionCode::IANA).unwrap_or_default().iter();
    let ours = associations.filter_map(|option| match option {
        DhcpOption::IANA(one) if one.id == ASSOCIATION => Some(one),
        _ => None,
    });
    let ours = ours.take(1).next().ok_or_else(|| Trouble::Words("the server gave no IA_NA".into()))?;
    status(&ours.opts)?;
    let addresses = ours.opts.get_all(OptionCode::IAAddr).unwrap_or_default().iter();
    let mut usable = addresses.filter_map(|option| match option {
        DhcpOption::IAAddr(one) if is_host(one.addr) && one.preferred_life <= one.valid_life => Some(one),
        _ => None,
    });
    let address = usable
        .find(|one| one.valid_life >= SHORTEST_LEASE)
        .ok_or_else(|| Trouble::Words("the server gave no address that can be used".into()))?;
    let nameservers = match options.get(OptionCode::DomainNameServers) {
        Some(DhcpOption::DomainNameServers(all)) => all.as_slice(),
        _ => &[],
    };
    let search = match options.get(OptionCode::DomainSearchList) {
        Some(DhcpOption::DomainSearchList(names)) => names.as_slice(),
        _ => &[],
    };
    Ok(Grant {
        // Which other addresses are on the wire is for routers to tell.
        address: IpNet::V6(Ipv6Net::from(address.addr)),
        gateway: None,
        routes: Vec::new(),
        nameservers: nameservers
            .iter()
            .filter(|ip| !ip.is_unspecified())
            .take(8)
            .map(|ip| IpAddr::V6(*ip))
            .collect(),
        domain: String::new(),
        search: search.iter().filter_map(|name| sieve::domain(&name.to_ascii())).take(32).collect(),
        mtu: None,
        server,
        times: times(ours, address),
    })
}

/// Zero leaves the times to the client: half and four fifths of the time in which the address is preferred.
fn times(association: &IANA, address: &IAAddr) -> Times {
    let preferred = match address.preferred_life {
        0 => address.valid_life,
        preferred => preferred,
    };
    let share = |tenths: u64| match preferred {
        FOREVER => None,
        _ => Some((u64::from(preferred) * tenths / 10) as u32),
    };
    let given = |time: u32| Some(time).filter(|time| *time != 0 && *time != FOREVER);
    let (renew, rebind) = (given(association.t1).or(share(5)), given(association.t2).or(share(8)));
    Times::sensible(renew, rebind, address.valid_life)
}

fn is_host(ip: Ipv6Addr) -> bool {
    !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || ip.is_unicast_link_local())
}

#[cfg(test)]
pub(crate) mod tests;
