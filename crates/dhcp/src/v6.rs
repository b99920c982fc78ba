//! Encodes and decodes DHCPv6 messages (RFC 8415, 3646): one address in an identity association (IA_NA), name servers, domains.

use std::net::{IpAddr, Ipv6Addr};

use dhcproto::v6::{DhcpOption, DhcpOptions, IAAddr, Message, MessageType, OptionCode, Status, IANA, ORO};
use dhcproto::{Decodable, Decoder, Encodable};
use ipnet::{IpNet, Ipv6Net};
use sha2::{Digest, Sha512};

use crate::grant::{Grant, Server, Times, FOREVER};
use crate::message::{MessageKind, Outgoing, Received};
use crate::sanitize;

/// The id of the client's only identity association; each client has its own DUID.
const IA_ID: u32 = 1;
const DUID_UUID: [u8; 2] = [0, 4]; // RFC 6355
const MIN_LEASE: u32 = 4;

/// The DHCPv6 messages of one client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Codec {
    /// The DUID.
    pub duid: Vec<u8>,
    /// The address that the client had before.
    pub previous: Option<Ipv6Addr>,
}

impl Codec {
    /// A client whose DUID depends only on `name`, not on its MAC address.
    pub fn named(name: &str) -> Codec {
        let mut duid = DUID_UUID.to_vec();
        duid.extend(&Sha512::digest(name.as_bytes())[..16]);
        Codec { duid, previous: None }
    }

    /// Encodes a message.
    pub fn encode(&self, outgoing: &Outgoing<'_>) -> Vec<u8> {
        let kind = match outgoing.kind {
            MessageKind::Discover => MessageType::Solicit,
            MessageKind::Request => MessageType::Request,
            MessageKind::Renew => MessageType::Renew,
            MessageKind::Rebind => MessageType::Rebind,
            MessageKind::Release => MessageType::Release,
        };
        let [_, xid @ ..] = outgoing.xid.to_be_bytes();
        let mut message = Message::new_with_id(kind, xid);
        let options = message.opts_mut();
        options.insert(DhcpOption::ClientId(self.duid.clone()));
        // In hundredths of a second, at most the largest number.
        let elapsed = (outgoing.elapsed.as_millis() / 10).min(u128::from(u16::MAX)) as u16;
        options.insert(DhcpOption::ElapsedTime(elapsed));
        if matches!(outgoing.kind, MessageKind::Request | MessageKind::Renew | MessageKind::Release) {
            options.insert(DhcpOption::ServerId(
                outgoing.grant.map(|grant| grant.server.id.clone()).unwrap_or_default(),
            ));
        }
        if outgoing.kind != MessageKind::Release {
            let opts = vec![OptionCode::DomainNameServers, OptionCode::DomainSearchList];
            options.insert(DhcpOption::ORO(ORO { opts }));
        }
        let held = match outgoing.grant.map(|grant| grant.address.addr()) {
            Some(IpAddr::V6(address)) => Some(address),
            _ => self.previous.filter(|_| outgoing.kind == MessageKind::Discover),
        };
        let mut inside = DhcpOptions::new();
        if let Some(addr) = held {
            let opts = DhcpOptions::new();
            inside.insert(DhcpOption::IAAddr(IAAddr { addr, preferred_life: 0, valid_life: 0, opts }));
        }
        options.insert(DhcpOption::IANA(IANA { id: IA_ID, t1: 0, t2: 0, opts: inside }));
        message.to_vec().unwrap_or_default()
    }

    /// Decodes a message; `None` if it is not for this client and transaction.
    pub fn decode(&self, packet: &[u8], xid: u32) -> Option<Received> {
        let message = Message::decode(&mut Decoder::new(&sanitize::v6(packet)?)).ok()?;
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
            MessageType::Advertise => Received::Offer,
            MessageType::Reply => Received::Grant,
            _ => return None,
        };
        let is_final = message.msg_type() == MessageType::Reply;
        Some(match read(options, server.clone()) {
            Ok(grant) => wrap(grant),
            // The server does not know the lease, or it is not for this link.
            Err(Failure::Status(Status::NoBinding | Status::NotOnLink)) if is_final => {
                Received::Refusal { server, reason: "the server does not know the lease".into() }
            }
            Err(Failure::Status(status)) => Received::Invalid(format!("the server answered {status:?}")),
            Err(Failure::Text(text)) => Received::Invalid(text),
        })
    }
}

/// Why a message has no usable address.
enum Failure {
    Status(Status),
    Text(String),
}

fn status(options: &DhcpOptions) -> Result<(), Failure> {
    match options.get(OptionCode::StatusCode) {
        Some(DhcpOption::StatusCode(code)) if code.status != Status::Success => {
            Err(Failure::Status(code.status))
        }
        _ => Ok(()),
    }
}

fn read(options: &DhcpOptions, server: Server) -> Result<Grant, Failure> {
    status(options)?;
    let associations = options.get_all(OptionCode::IANA).unwrap_or_default().iter();
    let ours = associations.filter_map(|option| match option {
        DhcpOption::IANA(one) if one.id == IA_ID => Some(one),
        _ => None,
    });
    let ours = ours.take(1).next().ok_or_else(|| Failure::Text("the server gave no IA_NA".into()))?;
    status(&ours.opts)?;
    let addresses = ours.opts.get_all(OptionCode::IAAddr).unwrap_or_default().iter();
    let mut usable = addresses.filter_map(|option| match option {
        DhcpOption::IAAddr(one) if is_host(one.addr) && one.preferred_life <= one.valid_life => Some(one),
        _ => None,
    });
    let address = usable
        .find(|one| one.valid_life >= MIN_LEASE)
        .ok_or_else(|| Failure::Text("the server gave no usable address".into()))?;
    let nameservers = match options.get(OptionCode::DomainNameServers) {
        Some(DhcpOption::DomainNameServers(all)) => all.as_slice(),
        _ => &[],
    };
    let search = match options.get(OptionCode::DomainSearchList) {
        Some(DhcpOption::DomainSearchList(names)) => names.as_slice(),
        _ => &[],
    };
    Ok(Grant {
        // Router advertisements tell which prefixes are on the link.
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
        search: search.iter().filter_map(|name| sanitize::domain(&name.to_ascii())).take(32).collect(),
        mtu: None,
        server,
        times: times(ours, address),
    })
}

/// The times of a lease. Zero leaves T1 and T2 to the client: one half and four fifths of the preferred lifetime.
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
    Times::with_defaults(renew, rebind, address.valid_life)
}

fn is_host(ip: Ipv6Addr) -> bool {
    !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || ip.is_unicast_link_local())
}

#[cfg(test)]
pub(crate) mod tests;
