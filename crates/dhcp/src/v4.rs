//! Encodes and decodes DHCPv4 messages (RFC 2131, 2132, 3397, 3442).

use std::net::{IpAddr, Ipv4Addr};

use dhcproto::v4::{DhcpOption, DhcpOptions, Flags, Message, MessageType, OptionCode, UnknownOption};
use dhcproto::{Decodable, Decoder, Encodable};
use ipnet::{IpNet, Ipv4Net};
use podwire_agent_ipc::dhcp::ProvidedOption;

use crate::grant::{Grant, Route, Server, Times, FOREVER};
use crate::message::{MessageKind, Outgoing, Received};
use crate::sanitize;

/// The largest message that a server may send: it fits an Ethernet frame with its headers.
const MAX_MESSAGE: u16 = 1472;
/// The shortest lease that is accepted, in seconds.
const MIN_LEASE: u32 = 4;
/// The smallest MTU that is accepted; every IPv4 host must receive packets of this size (RFC 791).
const MIN_MTU: u32 = 576;
const MAX_ROUTES: usize = 64;
const MAX_NAMES: usize = 32;

/// The DHCPv4 messages of one client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Codec {
    /// The MAC address.
    pub mac: [u8; 6],
    /// The client identifier.
    pub id: Vec<u8>,
    /// The options to request.
    pub requested: Vec<u8>,
    /// The options to send.
    pub provided: Vec<ProvidedOption>,
    /// The address that the client had before.
    pub previous: Option<Ipv4Addr>,
}

impl Codec {
    /// Encodes a message.
    pub fn encode(&self, outgoing: &Outgoing<'_>) -> Vec<u8> {
        let none = Ipv4Addr::UNSPECIFIED;
        let held = outgoing.grant.and_then(|grant| match grant.address.addr() {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        });
        let has_address =
            matches!(outgoing.kind, MessageKind::Renew | MessageKind::Rebind | MessageKind::Release);
        let from = held.filter(|_| has_address).unwrap_or(none);
        let mut message = Message::new_with_id(outgoing.xid, from, none, none, none, &self.mac);
        message.set_secs(outgoing.elapsed.as_secs().min(u64::from(u16::MAX)) as u16);
        if matches!(outgoing.kind, MessageKind::Discover | MessageKind::Request) {
            // Some links (ipvlan) drop packets to an address that is not theirs yet.
            message.set_flags(Flags::default().set_broadcast());
        }
        self.add_options(message.opts_mut(), outgoing, held);
        // Cannot fail: every value was made above.
        message.to_vec().unwrap_or_default()
    }

    fn add_options(&self, options: &mut DhcpOptions, outgoing: &Outgoing<'_>, held: Option<Ipv4Addr>) {
        let kind = match outgoing.kind {
            MessageKind::Discover => MessageType::Discover,
            MessageKind::Request | MessageKind::Renew | MessageKind::Rebind => MessageType::Request,
            MessageKind::Release => MessageType::Release,
        };
        options.insert(DhcpOption::ClientIdentifier(self.id.clone()));
        if outgoing.kind != MessageKind::Release {
            options.insert(DhcpOption::MaxMessageSize(MAX_MESSAGE));
            let wanted: Vec<_> = self.requested.iter().map(|code| OptionCode::from(*code)).collect();
            options.extend_with((!wanted.is_empty()).then_some(DhcpOption::ParameterRequestList(wanted)));
        }
        for ProvidedOption { code, value } in &self.provided {
            let option = UnknownOption::new(OptionCode::from(*code), value.clone());
            options.insert(DhcpOption::Unknown(option));
        }
        // After the options of the config, which must not override these.
        options.insert(DhcpOption::MessageType(kind));
        let asked = match outgoing.kind {
            MessageKind::Discover => held.or(self.previous),
            MessageKind::Request => held,
            _ => None,
        };
        options.extend_with(asked.map(DhcpOption::RequestedIpAddress));
        if matches!(outgoing.kind, MessageKind::Request | MessageKind::Release) {
            let server = outgoing.grant.and_then(|grant| server_address(&grant.server));
            options.extend_with(server.map(DhcpOption::ServerIdentifier));
        }
    }

    /// Decodes a packet; `None` if it is not for this client and transaction.
    pub fn decode(&self, packet: &[u8], xid: u32) -> Option<Received> {
        let message = Message::decode(&mut Decoder::new(&sanitize::v4(packet)?)).ok()?;
        if message.xid() != xid || message.chaddr() != self.mac {
            return None;
        }
        let id = match message.opts().get(OptionCode::ServerIdentifier) {
            Some(DhcpOption::ServerIdentifier(id)) => *id,
            _ => return None,
        };
        // A server may echo the client identifier (RFC 6842): it must be this client's.
        if let Some(DhcpOption::ClientIdentifier(echoed)) = message.opts().get(OptionCode::ClientIdentifier) {
            if *echoed != self.sent_id() {
                return None;
            }
        }
        let server = Server { id: id.octets().to_vec(), mac: None };
        match message.opts().msg_type()? {
            MessageType::Offer => {
                Some(read(&message, server).map_or_else(Received::Invalid, Received::Offer))
            }
            MessageType::Ack => Some(
                read(&message, server).and_then(with_end).map_or_else(Received::Invalid, Received::Grant),
            ),
            MessageType::Nak => {
                let reason = match message.opts().get(OptionCode::Message) {
                    Some(DhcpOption::Message(text)) => {
                        text.chars().filter(|c| !c.is_control()).take(120).collect()
                    }
                    _ => String::new(),
                };
                Some(Received::Refusal { server, reason })
            }
            _ => None,
        }
    }

    /// The identifier that is sent: the config can override it.
    fn sent_id(&self) -> &[u8] {
        let provided = self.provided.iter().rev().find(|option| option.code == 61);
        provided.map_or(&self.id, |option| &option.value)
    }
}

/// Inserts an optional value.
trait ExtendWith {
    fn extend_with(&mut self, option: Option<DhcpOption>);
}

impl ExtendWith for DhcpOptions {
    fn extend_with(&mut self, option: Option<DhcpOption>) {
        if let Some(option) = option {
            self.insert(option);
        }
    }
}

/// The IPv4 address of a server, from its identifier.
pub fn server_address(server: &Server) -> Option<Ipv4Addr> {
    let octets: [u8; 4] = server.id.as_slice().try_into().ok()?;
    Some(octets.into())
}

/// An acknowledgement must have a lease time; an offer need not.
fn with_end(grant: Grant) -> Result<Grant, String> {
    match grant.times.end {
        0 => Err("DHCP option Lease Time not found in DHCPACK".into()),
        end if end < MIN_LEASE => Err(format!("a lease of {end} s is too short")),
        _ => Ok(grant),
    }
}

fn read(message: &Message, server: Server) -> Result<Grant, String> {
    let option = |code: OptionCode| message.opts().get(code);
    let seconds = |code: OptionCode| match option(code) {
        Some(
            DhcpOption::AddressLeaseTime(seconds)
            | DhcpOption::Renewal(seconds)
            | DhcpOption::Rebinding(seconds),
        ) => Some(*seconds),
        _ => None,
    };
    let address = message.yiaddr();
    if !is_host(address) {
        return Err(format!("the server gave {address}, which is not a host address"));
    }
    let prefix = match option(OptionCode::SubnetMask) {
        Some(DhcpOption::SubnetMask(mask)) => ipnet::ipv4_mask_to_prefix(*mask)
            .map_err(|_| format!("the server gave the invalid subnet mask {mask}"))?,
        _ => return Err("DHCP option Subnet Mask not found in DHCPACK".into()),
    };
    let address = Ipv4Net::new(address, prefix).map_err(|error| error.to_string())?;
    let (gateway, routes) = routes(message, address.addr());
    let end = seconds(OptionCode::AddressLeaseTime).unwrap_or(0);
    let mtu = match option(OptionCode::InterfaceMtu) {
        Some(DhcpOption::InterfaceMtu(mtu)) => Some(u32::from(*mtu)).filter(|mtu| *mtu >= MIN_MTU),
        _ => None,
    };
    let nameservers = match option(OptionCode::DomainNameServer) {
        Some(DhcpOption::DomainNameServer(all)) => all.as_slice(),
        _ => &[],
    };
    let domain = match option(OptionCode::DomainName) {
        Some(DhcpOption::DomainName(name)) => sanitize::domain(name),
        _ => None,
    };
    let search = match option(OptionCode::DomainSearch) {
        Some(DhcpOption::DomainSearch(names)) => names.as_slice(),
        _ => &[],
    };
    Ok(Grant {
        address: IpNet::V4(address),
        gateway: gateway.map(IpAddr::V4),
        routes,
        nameservers: nameservers
            .iter()
            .filter(|ip| is_host(**ip))
            .take(8)
            .map(|ip| IpAddr::V4(*ip))
            .collect(),
        domain: domain.unwrap_or_default(),
        search: search.iter().filter_map(|name| sanitize::domain(&name.to_ascii())).take(MAX_NAMES).collect(),
        mtu,
        server,
        times: match end {
            0 => Times { renew: FOREVER, rebind: FOREVER, end },
            _ => Times::with_defaults(seconds(OptionCode::Renewal), seconds(OptionCode::Rebinding), end),
        },
    })
}

/// Whether this can be a host's address.
fn is_host(ip: Ipv4Addr) -> bool {
    let [first, ..] = ip.octets();
    first != 0 && first < 224 && !ip.is_loopback()
}

/// The gateway and the routes. Classless routes replace static routes and routers (RFC 3442).
fn routes(message: &Message, own: Ipv4Addr) -> (Option<Ipv4Addr>, Vec<Route>) {
    let usable = |router: &Ipv4Addr| is_host(*router) && *router != own;
    let via = |dst: Ipv4Net, router: Ipv4Addr| Route {
        dst: IpNet::V4(dst.trunc()),
        gateway: Some(router).filter(|router| !router.is_unspecified()).map(IpAddr::V4),
    };
    if let Some(DhcpOption::ClasslessStaticRoute(all)) = message.opts().get(OptionCode::ClasslessStaticRoute)
    {
        let valid = all.iter().filter(|(_, router)| router.is_unspecified() || usable(router));
        let valid: Vec<_> = valid.take(MAX_ROUTES).collect();
        let default = valid.iter().find(|(dst, router)| dst.prefix_len() == 0 && !router.is_unspecified());
        return (
            default.map(|(_, router)| *router),
            valid.iter().map(|(dst, router)| via(*dst, *router)).collect(),
        );
    }
    let mut routes = Vec::new();
    if let Some(DhcpOption::StaticRoutingTable(all)) = message.opts().get(OptionCode::StaticRoutingTable) {
        let valid = all.iter().filter(|(dst, router)| is_host(*dst) && usable(router));
        routes.extend(valid.take(MAX_ROUTES).map(|(dst, router)| via(classful(*dst), *router)));
    }
    let routers = match message.opts().get(OptionCode::Router) {
        Some(DhcpOption::Router(all)) => all.as_slice(),
        _ => &[],
    };
    let gateway = routers.iter().copied().find(usable);
    routes.extend(gateway.map(|router| via(Ipv4Net::default(), router)));
    (gateway, routes)
}

/// The classful network of an address; an address with host bits is a host route.
fn classful(dst: Ipv4Addr) -> Ipv4Net {
    let prefix = match dst.octets()[0] {
        0..128 => 8,
        128..192 => 16,
        _ => 24,
    };
    match Ipv4Net::new(dst, prefix) {
        Ok(net) if net.network() == dst => net,
        _ => Ipv4Net::from(dst),
    }
}

#[cfg(test)]
pub(crate) mod tests;
