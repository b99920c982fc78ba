//! BIRD's configuration as a value: filter functions, the tables of each family and the BGP protocols. `Display` writes
//! it in BIRD's language.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use podwire_block_ipam::IpFamily;

use crate::passwords::Password;

/// A configuration.
pub(crate) struct BirdConfig {
    pub(crate) node: String,
    pub(crate) router_id: Ipv4Addr,
    /// Patterns of interfaces whose addresses BIRD ignores.
    pub(crate) ignored_interfaces: Vec<String>,
    pub(crate) functions: Vec<Function>,
    pub(crate) tables: Vec<FamilyTables>,
    pub(crate) sessions: Vec<BgpProtocol>,
}

/// Which routes a filter sees: those that a peer sends, or those that this node sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Import,
    Export,
}

/// A filter function in BIRD's language.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) family: IpFamily,
    pub(crate) direction: Direction,
    pub(crate) statements: Vec<String>,
}

impl Function {
    pub(crate) fn is_for(&self, family: IpFamily, direction: Direction) -> bool {
        (self.family, self.direction) == (family, direction)
    }
}

/// What BIRD exchanges with the kernel, for one family.
pub(crate) struct FamilyTables {
    pub(crate) family: IpFamily,
    /// Pools with a tunnel. BIRD does not write routes to them: the agent does.
    pub(crate) tunnelled: Vec<IpNet>,
    /// This node's blocks, which BIRD announces.
    pub(crate) blocks: BTreeSet<IpNet>,
}

/// A BGP session.
pub(crate) struct BgpProtocol {
    pub(crate) name: String,
    pub(crate) local: Speaker,
    pub(crate) neighbor: Speaker,
    /// A gateway that leads to the neighbor.
    pub(crate) gateway: Option<IpAddr>,
    pub(crate) password: Option<Password>,
    /// The number of hops that TTL security allows.
    pub(crate) ttl_security: Option<u8>,
    /// In seconds.
    pub(crate) restart_time: u32,
    /// In seconds.
    pub(crate) keepalive_time: Option<u32>,
    pub(crate) allow_local_as: Option<u32>,
    pub(crate) reflection: Option<Reflection>,
    pub(crate) channel: Channel,
}

/// One end of a session.
pub(crate) struct Speaker {
    pub(crate) ip: Option<IpAddr>,
    pub(crate) port: Option<u16>,
    pub(crate) asn: u32,
}

/// The neighbor is a client of this route reflector.
pub(crate) struct Reflection {
    pub(crate) cluster_id: Option<Ipv4Addr>,
}

/// Which routes a session carries.
pub(crate) struct Channel {
    pub(crate) family: IpFamily,
    /// Names of filter functions.
    pub(crate) import_filters: Vec<String>,
    pub(crate) export_filters: Vec<String>,
    /// Pools that are not exported.
    pub(crate) hidden: Vec<IpNet>,
    /// Whether routes learned by BGP are exported, besides this node's blocks.
    pub(crate) exports_learned: bool,
    pub(crate) next_hop: NextHop,
}

/// The next hop that a peer gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextHop {
    /// BIRD's default for the kind of session.
    Auto,
    /// This node.
    Own,
    /// The one that the route was learned with.
    Keep,
}

impl Display for BirdConfig {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "# Written by podwire for node {}. Changes are lost.", self.node.escape_default())?;
        writeln!(f, "log syslog all;")?;
        writeln!(f, "router id {};", self.router_id)?;
        writeln!(f, "graceful restart wait 60;")?;
        writeln!(f, "protocol device {{ scan time 5; }}")?;
        write!(f, "protocol direct {{ ipv4; ipv6; interface ")?;
        self.ignored_interfaces.iter().try_for_each(|name| write!(f, "-\"{name}\", "))?;
        writeln!(f, "\"*\"; }}")?;
        self.functions.iter().try_for_each(|function| write!(f, "{function}"))?;
        self.tables.iter().try_for_each(|tables| write!(f, "{tables}"))?;
        self.sessions.iter().try_for_each(|session| write!(f, "{session}"))
    }
}

impl Display for Function {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "function {}()\n{{", self.name)?;
        self.statements.iter().try_for_each(|statement| writeln!(f, "  {statement}"))?;
        writeln!(f, "}}")
    }
}

impl Display for FamilyTables {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let digit = self.family.digit();
        writeln!(
            f,
            "filter to_kernel{digit} {{ {}if (source = RTS_BGP) then accept; reject; }}",
            Reject(&self.tunnelled)
        )?;
        writeln!(
            f,
            "protocol kernel kernel{digit} {{ learn; persist; scan time 10; graceful restart; merge paths on; \
             ipv{digit} {{ import all; export filter to_kernel{digit}; }}; }}"
        )?;
        writeln!(f, "protocol static blocks{digit} {{ ipv{digit};")?;
        self.blocks.iter().try_for_each(|block| writeln!(f, "  route {block} blackhole;"))?;
        writeln!(f, "}}")
    }
}

impl Display for BgpProtocol {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        if let (Some(gateway), Some(ip)) = (self.gateway, self.neighbor.ip) {
            let (digit, to) = (self.channel.family.digit(), IpNet::from(ip));
            writeln!(f, "protocol static reach_{name} {{ ipv{digit}; route {to} via {gateway}; }}")?;
        }
        writeln!(f, "protocol bgp {name} {{")?;
        writeln!(f, "  local{};", self.local)?;
        writeln!(f, "  neighbor{};", self.neighbor)?;
        if let Some(password) = &self.password {
            writeln!(f, "  password {};", password.quoted())?;
        }
        match self.ttl_security {
            Some(hops) => writeln!(f, "  multihop {hops}; ttl security on;")?,
            None => writeln!(f, "  multihop;")?,
        }
        writeln!(f, "  graceful restart on; graceful restart time {};", self.restart_time)?;
        writeln!(f, "  connect delay time 1; connect retry time 5; error wait time 1, 10;")?;
        if let Some(keepalive) = self.keepalive_time {
            writeln!(f, "  keepalive time {keepalive};")?;
        }
        if let Some(times) = self.allow_local_as {
            writeln!(f, "  allow local as {times};")?;
        }
        if let Some(Reflection { cluster_id }) = &self.reflection {
            writeln!(f, "  rr client;")?;
            if let Some(id) = cluster_id {
                writeln!(f, "  rr cluster id {id};")?;
            }
        }
        writeln!(f, "{}", self.channel)?;
        writeln!(f, "}}")
    }
}

impl Display for Speaker {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some(ip) = self.ip {
            write!(f, " {ip}")?;
        }
        if let Some(port) = self.port {
            write!(f, " port {port}")?;
        }
        write!(f, " as {}", self.asn)
    }
}

impl Display for Channel {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let digit = self.family.digit();
        write!(f, "  ipv{digit} {{ import filter {{ ")?;
        self.import_filters.iter().try_for_each(|name| write!(f, "{name}(); "))?;
        write!(f, "accept; }}; export filter {{ {}", Reject(&self.hidden))?;
        self.export_filters.iter().try_for_each(|name| write!(f, "{name}(); "))?;
        let learned = if self.exports_learned { " || source = RTS_BGP" } else { "" };
        write!(f, "if (proto = \"blocks{digit}\"{learned}) then accept; reject; }}; ")?;
        let next_hop = match self.next_hop {
            NextHop::Auto => "",
            NextHop::Own => " next hop self;",
            NextHop::Keep => " next hop keep;",
        };
        write!(f, "add paths on; gateway recursive;{next_hop} }};")
    }
}

/// A statement that rejects all routes within these networks.
struct Reject<'a>(&'a [IpNet]);

impl Display for Reject<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let nets: Vec<String> = self.0.iter().map(|net| format!("{net}+")).collect();
        if nets.is_empty() {
            return Ok(());
        }
        write!(f, "if (net ~ [ {} ]) then reject; ", nets.join(", "))
    }
}
