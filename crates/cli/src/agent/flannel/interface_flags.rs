//! The flags that choose the node's uplink.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use clap::Args;
use podwire_overlay::UplinkPreference;

#[derive(Debug, Args)]
#[command(next_help_heading = "Interface")]
pub(super) struct InterfaceFlags {
    /// Interface to the other nodes, by name or address; repeatable, the first that exists is used.
    #[arg(long, value_name = "NAME", env = "FLANNELD_IFACE", hide_env = true, value_delimiter = ',')]
    iface: Vec<String>,
    /// Interface whose name or address matches this regular expression; repeatable.
    #[arg(long, value_name = "REGEX", env = "FLANNELD_IFACE_REGEX", hide_env = true)]
    iface_regex: Vec<String>,
    /// Interface that has the route to this address; repeatable.
    #[arg(long, value_name = "IP", env = "FLANNELD_IFACE_CAN_REACH", hide_env = true)]
    iface_can_reach: Vec<IpAddr>,
    /// IPv4 address that other nodes use to reach this node [default: of the interface].
    #[arg(long, value_name = "IP", env = "FLANNELD_PUBLIC_IP", hide_env = true)]
    pub(super) public_ip: Option<Ipv4Addr>,
    /// IPv6 address that other nodes use to reach this node [default: of the interface].
    #[arg(long, value_name = "IP", env = "FLANNELD_PUBLIC_IPV6", hide_env = true)]
    pub(super) public_ipv6: Option<Ipv6Addr>,
}

impl InterfaceFlags {
    pub(super) fn preference(&self) -> UplinkPreference {
        let public = [self.public_ip.map(IpAddr::V4), self.public_ipv6.map(IpAddr::V6)];
        UplinkPreference {
            interfaces: self.iface.clone(),
            patterns: self.iface_regex.clone(),
            can_reach: self.iface_can_reach.clone(),
            node_addresses: public.into_iter().flatten().collect(),
        }
    }
}
