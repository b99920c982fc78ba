//! One range of addresses: what was written, and what it means.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::Error;

/// A range as the config has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeSpec {
    /// Where it stands in the config, for errors: `ipam.ranges[0][1]`.
    pub key: String,
    /// The subnet: a network address and the prefix length that pods get with their addresses.
    pub subnet: IpNet,
    /// The first address to hand out.
    pub start: Option<IpAddr>,
    /// The last address to hand out.
    pub end: Option<IpAddr>,
    /// The gateway, which need not be in the subnet.
    pub gateway: Option<IpAddr>,
}

impl RangeSpec {
    /// A whole subnet.
    pub fn new(key: impl Into<String>, subnet: IpNet) -> RangeSpec {
        RangeSpec { key: key.into(), subnet, start: None, end: None, gateway: None }
    }
}

/// Addresses of one subnet, from the first to the last that may be handed out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    pub(crate) key: String,
    subnet: IpNet,
    start: u128,
    end: u128,
    gateway: IpAddr,
}

impl Range {
    /// Checks a range and fills in what was left out: the gateway is the subnet's first address, the bounds are
    /// its first and last, without the broadcast address of IPv4. Bounds that were written out may well be
    /// `.0` or `.255`.
    pub fn new(spec: RangeSpec) -> Result<Range, Error> {
        let RangeSpec { key, subnet, start, end, gateway } = spec;
        if subnet.prefix_len() > subnet.max_prefix_len() - 2 {
            return Err(Error::TooSmall { key, subnet });
        }
        if subnet.addr() != subnet.network() {
            return Err(Error::HostBits { key, subnet });
        }
        let bound = |bound: &'static str, ip: Option<IpAddr>, default: u128| match ip {
            Some(ip) if !subnet.contains(&ip) => {
                Err(Error::OutsideOfSubnet { key: key.clone(), bound, ip, subnet })
            }
            Some(ip) => Ok(number(ip)),
            None => Ok(default),
        };
        let first = number(subnet.network()) + 1;
        // The last address of an IPv4 subnet is its broadcast address; IPv6 has none.
        let last = number(subnet.broadcast()) - u128::from(subnet.addr().is_ipv4());
        let (start, end) = (bound("rangeStart", start, first)?, bound("rangeEnd", end, last)?);
        let range = Range { gateway: gateway.unwrap_or(address(first, subnet)), key, subnet, start, end };
        if start > end {
            let (start, end) = (range.start(), range.end());
            return Err(Error::Inverted { key: range.key, start, end, subnet });
        }
        Ok(range)
    }

    /// The subnet.
    pub fn subnet(&self) -> IpNet {
        self.subnet
    }

    /// The first address.
    pub fn start(&self) -> IpAddr {
        self.address(self.start)
    }

    /// The last address.
    pub fn end(&self) -> IpAddr {
        self.address(self.end)
    }

    /// The gateway of its pods.
    pub fn gateway(&self) -> IpAddr {
        self.gateway
    }

    /// Whether `ip` is between the first and the last address.
    pub fn contains(&self, ip: IpAddr) -> bool {
        ip.is_ipv4() == self.is_ipv4() && (self.start..=self.end).contains(&number(ip))
    }

    /// Whether the two have an address in common.
    pub fn overlaps(&self, other: &Range) -> bool {
        self.is_ipv4() == other.is_ipv4() && self.start <= other.end && other.start <= self.end
    }

    /// Whether it is IPv4.
    pub fn is_ipv4(&self) -> bool {
        self.subnet.addr().is_ipv4()
    }

    /// How many addresses there are, the gateway included.
    pub fn size(&self) -> u128 {
        (self.end - self.start).saturating_add(1)
    }

    /// `ip` with the prefix length of the subnet.
    pub fn assign(&self, ip: IpAddr) -> IpNet {
        // The lengths of the subnet fit its family, which is also that of `ip`.
        IpNet::new(ip, self.subnet.prefix_len()).unwrap_or_else(|_| ip.into())
    }

    pub(crate) fn bounds(&self) -> (u128, u128) {
        (self.start, self.end)
    }

    pub(crate) fn address(&self, number: u128) -> IpAddr {
        address(number, self.subnet)
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.start(), self.end())
    }
}

pub(crate) fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// The address with this number in the family of `subnet`.
fn address(number: u128, subnet: IpNet) -> IpAddr {
    match (subnet, u32::try_from(number)) {
        (IpNet::V4(_), Ok(number)) => Ipv4Addr::from_bits(number).into(),
        _ => Ipv6Addr::from_bits(number).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(subnet: &str, start: &str, end: &str, gateway: &str) -> RangeSpec {
        let ip = |text: &str| (!text.is_empty()).then(|| text.parse().unwrap());
        let subnet = subnet.parse().unwrap();
        RangeSpec { key: "ipam".into(), subnet, start: ip(start), end: ip(end), gateway: ip(gateway) }
    }

    fn range(subnet: &str, start: &str, end: &str, gateway: &str) -> Range {
        Range::new(spec(subnet, start, end, gateway)).unwrap()
    }

    fn refusal(subnet: &str, start: &str, end: &str) -> String {
        Range::new(spec(subnet, start, end, "")).unwrap_err().to_string()
    }

    #[test]
    fn a_subnet_is_enough() {
        let v4 = range("192.0.2.0/24", "", "", "");
        assert_eq!(
            (v4.to_string(), v4.gateway().to_string()),
            ("192.0.2.1-192.0.2.254".into(), "192.0.2.1".into())
        );
        let v6 = range("2001:db8:1::/64", "", "", "");
        assert_eq!(v6.to_string(), "2001:db8:1::1-2001:db8:1:0:ffff:ffff:ffff:ffff");
        assert_eq!(v6.gateway().to_string(), "2001:db8:1::1");
    }

    #[test]
    fn written_bounds_may_be_the_subnets_edges() {
        let all = range("192.0.2.0/24", "192.0.2.0", "192.0.2.255", "192.0.2.7");
        assert_eq!((all.size(), all.gateway().to_string()), (256, "192.0.2.7".into()));
        assert_eq!(range("10.0.0.0/30", "", "", "").to_string(), "10.0.0.1-10.0.0.2");
        assert_eq!(range("fd00::/126", "", "", "").to_string(), "fd00::1-fd00::3");
    }

    #[test]
    fn a_gateway_may_be_elsewhere() {
        assert_eq!(range("10.2.0.0/24", "", "", "169.254.1.1").gateway().to_string(), "169.254.1.1");
    }

    #[test]
    fn the_whole_internet_is_a_range() {
        assert_eq!(range("0.0.0.0/0", "", "", "").size(), (1 << 32) - 2);
        assert_eq!(range("::/0", "", "", "").size(), u128::MAX);
        assert_eq!(range("::/0", "::", "", "").size(), u128::MAX, "one too many to count");
    }

    #[test]
    fn bad_ranges_are_refused_in_the_words_of_the_field() {
        assert_eq!(
            refusal("10.2.0.0/31", "", ""),
            "Network 10.2.0.0/31 too small to allocate from (ipam.subnet)"
        );
        assert_eq!(
            refusal("fd00::/127", "", ""),
            "Network fd00::/127 too small to allocate from (ipam.subnet)"
        );
        assert_eq!(
            refusal("10.2.0.1/24", "", ""),
            "Network has host bits set. For a subnet mask of length 24 the network address is 10.2.0.0 \
             (ipam.subnet is 10.2.0.1/24)"
        );
        assert_eq!(
            refusal("10.2.0.0/24", "10.9.0.1", ""),
            "RangeStart 10.9.0.1 not in network 10.2.0.0/24 (ipam.rangeStart)"
        );
        assert_eq!(
            refusal("10.2.0.0/24", "", "fd00::1"),
            "RangeEnd fd00::1 not in network 10.2.0.0/24 (ipam.rangeEnd)"
        );
        let backwards =
            "RangeEnd 10.2.0.5 not in network 10.2.0.0/24 after rangeStart 10.2.0.9 (ipam.rangeEnd)";
        assert_eq!(refusal("10.2.0.0/24", "10.2.0.9", "10.2.0.5"), backwards);
        assert!(refusal("10.2.0.0/24", "10.2.0.255", "").starts_with("RangeEnd 10.2.0.254 not in network"));
    }

    #[test]
    fn overlap_is_an_address_in_common() {
        let low = range("10.1.0.0/24", "", "10.1.0.99", "");
        let high = range("10.1.0.0/24", "10.1.0.100", "", "");
        assert!(!low.overlaps(&high) && low.overlaps(&low));
        assert!(
            range("10.0.0.0/8", "", "", "").overlaps(&high)
                && high.overlaps(&range("10.0.0.0/8", "", "", ""))
        );
        assert!(!range("::/96", "", "", "").overlaps(&range("0.0.0.0/0", "", "", "")), "families never meet");
    }

    #[test]
    fn an_address_gets_the_subnets_prefix() {
        let range = range("10.1.0.0/16", "10.1.5.0", "10.1.5.9", "");
        assert_eq!(range.assign("10.1.5.3".parse().unwrap()).to_string(), "10.1.5.3/16");
        assert!(range.contains("10.1.5.9".parse().unwrap()) && !range.contains("10.1.5.10".parse().unwrap()));
    }
}
