//! DHCPv4 (RFC 2131, 2132, 3397, 3442) as a pod speaks it: what it says, and what it understands.

use std::net::{IpAddr, Ipv4Addr};

use dhcproto::v4::{DhcpOption, DhcpOptions, Flags, Message, MessageType, OptionCode, UnknownOption};
use dhcproto::{Decodable, Decoder, Encodable};
use ipnet::{IpNet, Ipv4Net};
use podwire_agent_ipc::dhcp::ProvidedOption;

use crate::dialect::{Heard, Saying, Word};
use crate::grant::{Grant, Route, Server, Times, FOREVER};
use crate::sieve;

/// What a server may send us at most: it fits an Ethernet frame with the headers.
const LARGEST: u16 = 1472;
/// Shorter leases would keep both sides busy with nothing else.
const SHORTEST_LEASE: u32 = 4;
/// Below this a network is of no use, and no honest one has it (RFC 791 asks for it at least).
const SMALLEST_MTU: u32 = 576;
const MOST_ROUTES: usize = 64;
const MOST_NAMES: usize = 32;

/// A pod's interface as a DHCPv4 client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// Its hardware address.
    pub mac: [u8; 6],
    /// Its client identifier.
    pub id: Vec<u8>,
    /// The options that it asks for.
    pub requested: Vec<u8>,
    /// Options that it sends.
    pub provided: Vec<ProvidedOption>,
    /// The address that it had before.
    pub before: Option<Ipv4Addr>,
}

impl Client {
    /// The message for a word.
    pub fn say(&self, saying: &Saying<'_>) -> Vec<u8> {
        let none = Ipv4Addr::UNSPECIFIED;
        let held = saying.grant.and_then(|grant| match grant.address.addr() {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        });
        let speaks_from_address = matches!(saying.word, Word::Renew | Word::Rebind | Word::Release);
        let from = held.filter(|_| speaks_from_address).unwrap_or(none);
        let mut message = Message::new_with_id(saying.xid, from, none, none, none, &self.mac);
        message.set_secs(saying.elapsed.as_secs().min(u64::from(u16::MAX)) as u16);
        if matches!(saying.word, Word::Discover | Word::Request) {
            // Some links (ipvlan) do not pass on what is sent to an address that is not yet theirs.
            message.set_flags(Flags::default().set_broadcast());
        }
        self.add_options(message.opts_mut(), saying, held);
        // Nothing in it can fail to be written: every value was made above.
        message.to_vec().unwrap_or_default()
    }

    fn add_options(&self, options: &mut DhcpOptions, saying: &Saying<'_>, held: Option<Ipv4Addr>) {
        let kind = match saying.word {
            Word::Discover => MessageType::Discover,
            Word::Request | Word::Renew | Word::Rebind => MessageType::Request,
            Word::Release => MessageType::Release,
        };
        options.insert(DhcpOption::ClientIdentifier(self.id.clone()));
        if saying.word != Word::Release {
            options.insert(DhcpOption::MaxMessageSize(LARGEST));
            let wanted: Vec<_> = self.requested.iter().map(|code| OptionCode::from(*code)).collect();
            options.extend_with((!wanted.is_empty()).then_some(DhcpOption::ParameterRequestList(wanted)));
        }
        for ProvidedOption { code, value } in &self.provided {
            let option = UnknownOption::new(OptionCode::from(*code), value.clone());
            options.insert(DhcpOption::Unknown(option));
        }
        // Behind what the config provides: these are not its to choose.
        options.insert(DhcpOption::MessageType(kind));
        let asked = match saying.word {
            Word::Discover => held.or(self.before),
            Word::Request => held,
            _ => None,
        };
        options.extend_with(asked.map(DhcpOption::RequestedIpAddress));
        if matches!(saying.word, Word::Request | Word::Release) {
            let server = saying.grant.and_then(|grant| server_address(&grant.server));
            options.extend_with(server.map(DhcpOption::ServerIdentifier));
        }
    }

    /// What a packet says to this client, if it says anything.
    pub fn understand(&self, packet: &[u8], xid: u32) -> Option<Heard> {
        let message = Message::decode(&mut Decoder::new(&sieve::v4(packet)?)).ok()?;
        if message.xid() != xid || message.chaddr() != self.mac {
            return None;
        }
        let id = match message.opts().get(OptionCode::ServerIdentifier) {
            Some(DhcpOption::ServerIdentifier(id)) => *id,
            _ => return None,
        };
        // A server that repeats the identifier (RFC 6842) repeats this client's.
        if let Some(DhcpOption::ClientIdentifier(repeated)) = message.opts().get(OptionCode::ClientIdentifier)
        {
            if *repeated != self.sent_id() {
                return None;
            }
        }
        let server = Server { id: id.octets().to_vec(), mac: None };
        match message.opts().msg_type()? {
            MessageType::Offer => Some(read(&message, server).map_or_else(Heard::Useless, Heard::Offer)),
            MessageType::Ack => {
                Some(read(&message, server).and_then(with_end).map_or_else(Heard::Useless, Heard::Grant))
            }
            MessageType::Nak => {
                let why = match message.opts().get(OptionCode::Message) {
                    Some(DhcpOption::Message(text)) => {
                        text.chars().filter(|c| !c.is_control()).take(120).collect()
                    }
                    _ => String::new(),
                };
                Some(Heard::Refusal { server, why })
            }
            _ => None,
        }
    }

    /// The identifier that is on the wire: the config may provide another.
    fn sent_id(&self) -> &[u8] {
        let provided = self.provided.iter().rev().find(|option| option.code == 61);
        provided.map_or(&self.id, |option| &option.value)
    }
}

/// Inserting what may not be there.
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

/// The IPv4 address by which a server calls itself.
pub fn server_address(server: &Server) -> Option<Ipv4Addr> {
    let octets: [u8; 4] = server.id.as_slice().try_into().ok()?;
    Some(octets.into())
}

/// An offer need not say how long, an acknowledgement must.
fn with_end(grant: Grant) -> Result<Grant, String> {
    match grant.times.end {
        0 => Err("DHCP option Lease Time not found in DHCPACK".into()),
        end if end < SHORTEST_LEASE => Err(format!("a lease of {end} s is too short")),
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
        return Err(format!("the server gave {address}, which no host can have"));
    }
    let prefix = match option(OptionCode::SubnetMask) {
        Some(DhcpOption::SubnetMask(mask)) => ipnet::ipv4_mask_to_prefix(*mask)
            .map_err(|_| format!("the server gave subnet mask {mask}, which is none"))?,
        _ => return Err("DHCP option Subnet Mask not found in DHCPACK".into()),
    };
    let address = Ipv4Net::new(address, prefix).map_err(|error| error.to_string())?;
    let (gateway, routes) = routes(message, address.addr());
    let end = seconds(OptionCode::AddressLeaseTime).unwrap_or(0);
    let mtu = match option(OptionCode::InterfaceMtu) {
        Some(DhcpOption::InterfaceMtu(mtu)) => Some(u32::from(*mtu)).filter(|mtu| *mtu >= SMALLEST_MTU),
        _ => None,
    };
    let nameservers = match option(OptionCode::DomainNameServer) {
        Some(DhcpOption::DomainNameServer(all)) => all.as_slice(),
        _ => &[],
    };
    let domain = match option(OptionCode::DomainName) {
        Some(DhcpOption::DomainName(name)) => sieve::domain(name),
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
        search: search.iter().filter_map(|name| sieve::domain(&name.to_ascii())).take(MOST_NAMES).collect(),
        mtu,
        server,
        times: match end {
            0 => Times { renew: FOREVER, rebind: FOREVER, end },
            _ => Times::sensible(seconds(OptionCode::Renewal), seconds(OptionCode::Rebinding), end),
        },
    })
}

/// Whether a host can have this address.
fn is_host(ip: Ipv4Addr) -> bool {
    let [first, ..] = ip.octets();
    first != 0 && first < 224 && !ip.is_loopback()
}

/// The gateway, and the routes. If there are classless routes nothing else counts (RFC 3442), the routers neither.
fn routes(message: &Message, own: Ipv4Addr) -> (Option<Ipv4Addr>, Vec<Route>) {
    let usable = |router: &Ipv4Addr| is_host(*router) && *router != own;
    let via = |dst: Ipv4Net, router: Ipv4Addr| Route {
        dst: IpNet::V4(dst.trunc()),
        gateway: Some(router).filter(|router| !router.is_unspecified()).map(IpAddr::V4),
    };
    if let Some(DhcpOption::ClasslessStaticRoute(all)) = message.opts().get(OptionCode::ClasslessStaticRoute)
    {
        let sound = all.iter().filter(|(_, router)| router.is_unspecified() || usable(router));
        let sound: Vec<_> = sound.take(MOST_ROUTES).collect();
        let default = sound.iter().find(|(dst, router)| dst.prefix_len() == 0 && !router.is_unspecified());
        return (
            default.map(|(_, router)| *router),
            sound.iter().map(|(dst, router)| via(*dst, *router)).collect(),
        );
    }
    let mut routes = Vec::new();
    if let Some(DhcpOption::StaticRoutingTable(all)) = message.opts().get(OptionCode::StaticRoutingTable) {
        let sound = all.iter().filter(|(dst, router)| is_host(*dst) && usable(router));
        routes.extend(sound.take(MOST_ROUTES).map(|(dst, router)| via(classful(*dst), *router)));
    }
    let routers = match message.opts().get(OptionCode::Router) {
        Some(DhcpOption::Router(all)) => all.as_slice(),
        _ => &[],
    };
    let gateway = routers.iter().copied().find(usable);
    routes.extend(gateway.map(|router| via(Ipv4Net::default(), router)));
    (gateway, routes)
}

/// The network of old that an address is in. One that is more than a network's is a host.
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
