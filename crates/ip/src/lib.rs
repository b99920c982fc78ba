//! The IP family, and addresses as integers.
//!
//! Every crate that distinguishes IPv4 from IPv6 uses [`IpFamily`]. The crate has no other content, so that crates that
//! do no I/O and crates that talk to the kernel can both depend on it.

#![forbid(unsafe_code)]

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IpFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl IpFamily {
    /// Both families, IPv4 first.
    pub const ALL: [IpFamily; 2] = [IpFamily::V4, IpFamily::V6];

    /// The family of an address.
    pub fn of(ip: IpAddr) -> IpFamily {
        match ip {
            IpAddr::V4(_) => IpFamily::V4,
            IpAddr::V6(_) => IpFamily::V6,
        }
    }

    /// The family of a network.
    pub fn of_net(net: IpNet) -> IpFamily {
        IpFamily::of(net.addr())
    }

    /// The families that occur in these networks, IPv4 first.
    pub fn among(nets: &[IpNet]) -> Vec<IpFamily> {
        let occurs = |family: &IpFamily| nets.iter().any(|net| IpFamily::of_net(*net) == *family);
        IpFamily::ALL.into_iter().filter(occurs).collect()
    }

    /// Whether this is IPv4.
    pub fn is_v4(self) -> bool {
        self == IpFamily::V4
    }

    /// Whether this is IPv6.
    pub fn is_v6(self) -> bool {
        self == IpFamily::V6
    }

    /// `IPv4` or `IPv6`.
    pub fn name(self) -> &'static str {
        match self {
            IpFamily::V4 => "IPv4",
            IpFamily::V6 => "IPv6",
        }
    }

    /// The number of bits of an address: 32 or 128.
    pub fn bits(self) -> u8 {
        match self {
            IpFamily::V4 => 32,
            IpFamily::V6 => 128,
        }
    }

    /// `0.0.0.0` or `::`.
    pub fn unspecified(self) -> IpAddr {
        match self {
            IpFamily::V4 => Ipv4Addr::UNSPECIFIED.into(),
            IpFamily::V6 => Ipv6Addr::UNSPECIFIED.into(),
        }
    }

    /// `4` or `6`, as in names such as `ipv4` and `net6_`.
    pub fn digit(self) -> char {
        match self {
            IpFamily::V4 => '4',
            IpFamily::V6 => '6',
        }
    }
}

impl fmt::Display for IpFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An address as an integer. IPv4 addresses fill the lower 32 bits.
pub fn to_u128(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u32::from(ip).into(),
        IpAddr::V6(ip) => ip.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_follow_addresses_and_networks() {
        assert_eq!(IpFamily::of("10.0.0.1".parse().unwrap()), IpFamily::V4);
        assert_eq!(IpFamily::of_net("fd00::/64".parse().unwrap()), IpFamily::V6);
        let nets = ["fd00::1/64", "10.0.0.1/8", "10.0.0.2/8"].map(|net| net.parse().unwrap());
        assert_eq!(IpFamily::among(&nets), IpFamily::ALL);
        assert_eq!(IpFamily::among(&nets[..1]), [IpFamily::V6]);
        assert_eq!(IpFamily::V6.to_string(), "IPv6");
        assert_eq!((IpFamily::V4.bits(), IpFamily::V6.digit()), (32, '6'));
    }

    #[test]
    fn addresses_convert_to_integers() {
        assert_eq!(to_u128("0.0.1.0".parse().unwrap()), 256);
        assert_eq!(to_u128("::1:0".parse().unwrap()), 65536);
    }
}
