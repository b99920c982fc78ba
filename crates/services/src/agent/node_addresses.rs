//! The addresses of this node in some networks, as they are now.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use ipnet::IpNet;
use podwire_ip::IpFamily;
use podwire_netlink::{rt, Result, Socket};

use crate::NodePortAddresses;

/// Lists the node's addresses, and notices their changes.
#[derive(Debug)]
pub(super) struct NodeAddresses {
    socket: Socket,
    notices: Socket,
    networks: Vec<IpNet>,
}

impl NodeAddresses {
    /// For the network namespace of the calling thread.
    pub fn open(networks: Vec<IpNet>) -> Result<NodeAddresses> {
        let mut notices = Socket::route()?;
        rt::GROUPS_ADDRESS.into_iter().try_for_each(|group| notices.subscribe(group))?;
        Ok(NodeAddresses { socket: Socket::route()?, notices, networks })
    }

    /// The addresses in the networks.
    pub fn list(&mut self) -> Result<NodePortAddresses> {
        let all = rt::address::list(&mut self.socket, 0)?;
        let mut chosen: Vec<IpAddr> =
            all.into_iter().map(|address| address.ip).filter(|ip| is_chosen(&self.networks, *ip)).collect();
        chosen.sort();
        chosen.dedup();
        Ok(NodePortAddresses::These(chosen))
    }

    /// Whether all addresses of a family are chosen.
    pub fn includes_all(&self, family: IpFamily) -> bool {
        includes_all(&self.networks, family)
    }

    pub fn event_source(&self) -> BorrowedFd<'_> {
        self.notices.as_fd()
    }

    /// Reads the notices.
    pub fn read_events(&mut self) -> Result<()> {
        self.notices.drain(|_| {}).map(drop)
    }
}

/// As in kube-proxy, no network of the family or the network of all addresses.
fn includes_all(networks: &[IpNet], family: IpFamily) -> bool {
    let mut of_family = networks.iter().filter(|net| IpFamily::of_net(**net) == family).peekable();
    of_family.peek().is_none() || of_family.any(|net| net.prefix_len() == 0)
}

/// As in kube-proxy, a family without networks has all addresses. Loopback and link-local addresses never count: no other
/// host can use them, or only with a device.
fn is_chosen(networks: &[IpNet], ip: IpAddr) -> bool {
    let is_link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    let mut of_family = networks.iter().filter(|net| IpFamily::of_net(**net) == IpFamily::of(ip)).peekable();
    let is_listed = of_family.peek().is_none() || of_family.any(|net| net.contains(&ip));
    is_listed && !is_link_local && !ip.is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks(written: &str) -> Vec<IpNet> {
        written.split_whitespace().map(|net| net.parse().unwrap()).collect()
    }

    #[test]
    fn addresses_are_chosen_as_by_kube_proxy() {
        let cases = [
            ("", "192.0.2.1", true),
            ("", "127.0.0.1", false),
            ("", "fe80::1", false),
            ("192.0.2.0/24", "192.0.2.1", true),
            ("192.0.2.0/24", "198.51.100.1", false),
            ("192.0.2.0/24", "fd00::1", true),
            ("0.0.0.0/0 fd00::/64", "198.51.100.1", true),
            ("0.0.0.0/0 fd00::/64", "fd01::1", false),
            ("127.0.0.0/8", "127.0.0.1", false),
        ];
        for (written, ip, expected) in cases {
            assert_eq!(is_chosen(&networks(written), ip.parse().unwrap()), expected, "{written:?} {ip}");
        }
    }

    #[test]
    fn a_family_is_unrestricted_without_a_network_or_with_that_of_all_addresses() {
        let cases = [
            ("", [true, true]),
            ("192.0.2.0/24", [false, true]),
            ("fd00::/64", [true, false]),
            ("192.0.2.0/24 0.0.0.0/0 fd00::/64", [true, false]),
        ];
        for (written, expected) in cases {
            let found = IpFamily::ALL.map(|family| includes_all(&networks(written), family));
            assert_eq!(found, expected, "{written:?}");
        }
    }
}
