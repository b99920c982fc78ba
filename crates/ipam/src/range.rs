//! One range of addresses: as configured, and checked.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use podwire_ip::{to_u128, IpFamily};

use crate::error::Error;
use crate::span::{self, Span};

/// A range as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeSpec {
    /// Its key in the configuration, for errors: `ipam.ranges[0][1]`.
    pub key: String,
    /// The subnet: a network address and the prefix length that pods get with their addresses.
    pub subnet: IpNet,
    /// The first address to assign.
    pub start: Option<IpAddr>,
    /// The last address to assign.
    pub end: Option<IpAddr>,
    /// The gateway, which need not be in the subnet.
    pub gateway: Option<IpAddr>,
    /// Addresses that no pod gets: addresses, networks, or `first-last`.
    pub exclude: Vec<String>,
    /// Addresses that only pods get that request them explicitly, in the same notation.
    pub reserve: Vec<String>,
}

impl RangeSpec {
    /// A whole subnet.
    pub fn new(key: impl Into<String>, subnet: IpNet) -> RangeSpec {
        let (exclude, reserve) = (Vec::new(), Vec::new());
        RangeSpec { key: key.into(), subnet, start: None, end: None, gateway: None, exclude, reserve }
    }
}

/// The assignable addresses of one subnet, from the first to the last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    pub(crate) key: String,
    subnet: IpNet,
    start: u128,
    end: u128,
    gateway: Option<IpAddr>,
    /// Addresses that no pod gets.
    excluded: Vec<Span>,
    /// Excluded and reserved addresses.
    held_back: Vec<Span>,
}

impl Range {
    /// Checks a range and applies defaults: the gateway is the subnet's first address; the bounds are its first and
    /// last address, without the broadcast address of IPv4. Explicit bounds may be `.0` or `.255`.
    ///
    /// A subnet of two addresses is a point-to-point link (RFC 3021, RFC 6164): it has neither a network nor a
    /// broadcast address, and no default gateway.
    pub fn new(spec: RangeSpec) -> Result<Range, Error> {
        let RangeSpec { key, subnet, start, end, gateway, exclude, reserve } = spec;
        if subnet.prefix_len() > subnet.max_prefix_len() - 1 {
            return Err(Error::TooSmall { key, subnet });
        }
        let is_point_to_point = subnet.prefix_len() == subnet.max_prefix_len() - 1;
        if subnet.addr() != subnet.network() {
            return Err(Error::HostBits { key, subnet });
        }
        let bound = |bound: &'static str, ip: Option<IpAddr>, default: u128| match ip {
            Some(ip) if !subnet.contains(&ip) => {
                Err(Error::OutsideOfSubnet { key: key.clone(), bound, ip, subnet })
            }
            Some(ip) => Ok(to_u128(ip)),
            None => Ok(default),
        };
        let first = to_u128(subnet.network()) + u128::from(!is_point_to_point);
        // The last address of an IPv4 subnet is its broadcast address. IPv6 has none.
        let last = to_u128(subnet.broadcast()) - u128::from(subnet.addr().is_ipv4() && !is_point_to_point);
        let (start, end) = (bound("rangeStart", start, first)?, bound("rangeEnd", end, last)?);
        if start > end {
            let (start, end) = (address(start, subnet), address(end, subnet));
            return Err(Error::Inverted { key, start, end, subnet });
        }
        let spans = |list: &'static str, texts: Vec<String>| -> Result<Vec<Span>, Error> {
            let read = |text: String| {
                span::parse(&text, subnet).map_err(|why| Error::HeldBack {
                    key: key.clone(),
                    list,
                    text,
                    subnet,
                    why,
                })
            };
            texts.into_iter().map(read).collect()
        };
        let (excluded, reserved) = (spans("exclude", exclude)?, spans("reserve", reserve)?);
        let held_back = span::merge([&excluded[..], &reserved[..]].concat(), (start, end));
        let excluded = span::merge(excluded, (start, end));
        let gateway = gateway.or((!is_point_to_point).then(|| address(first, subnet)));
        Ok(Range { key, subnet, start, end, gateway, excluded, held_back })
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

    /// The gateway, if there is one.
    pub fn gateway(&self) -> Option<IpAddr> {
        self.gateway
    }

    /// Whether `ip` is excluded, so that no pod gets it.
    pub fn excludes(&self, ip: IpAddr) -> bool {
        self.contains(ip) && span::find(&self.excluded, to_u128(ip)).is_some()
    }

    /// Whether `ip` is excluded or reserved, so that no pod gets it without an explicit request.
    pub fn is_held_back(&self, ip: IpAddr) -> bool {
        self.contains(ip) && span::find(&self.held_back, to_u128(ip)).is_some()
    }

    /// Whether `ip` is between the first and the last address.
    pub fn contains(&self, ip: IpAddr) -> bool {
        IpFamily::of(ip) == self.family() && (self.start..=self.end).contains(&to_u128(ip))
    }

    /// Whether two ranges have an address in common.
    pub fn overlaps(&self, other: &Range) -> bool {
        self.family() == other.family() && self.start <= other.end && other.start <= self.end
    }

    /// The IP family.
    pub fn family(&self) -> IpFamily {
        IpFamily::of_net(self.subnet)
    }

    /// The number of assignable addresses, the gateway included.
    pub fn size(&self) -> u128 {
        (self.end - self.start).saturating_add(1).saturating_sub(span::size(&self.held_back))
    }

    /// `ip` with the prefix length of the subnet.
    pub fn assign(&self, ip: IpAddr) -> IpNet {
        // The subnet's prefix length fits its family, which is the family of `ip`.
        IpNet::new(ip, self.subnet.prefix_len()).unwrap_or_else(|_| ip.into())
    }

    /// The last address of the excluded or reserved span that contains `number`.
    pub(crate) fn held_back_until(&self, number: u128) -> Option<u128> {
        span::find(&self.held_back, number).map(|(_, last)| last)
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

/// The address for an integer, in the family of `subnet`.
pub(crate) fn address(number: u128, subnet: IpNet) -> IpAddr {
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
        RangeSpec { start: ip(start), end: ip(end), gateway: ip(gateway), ..RangeSpec::new("ipam", subnet) }
    }

    fn range(subnet: &str, start: &str, end: &str, gateway: &str) -> Range {
        Range::new(spec(subnet, start, end, gateway)).unwrap()
    }

    fn gateway(range: &Range) -> String {
        range.gateway().map(|ip| ip.to_string()).unwrap_or_default()
    }

    fn refusal(subnet: &str, start: &str, end: &str) -> String {
        Range::new(spec(subnet, start, end, "")).unwrap_err().to_string()
    }

    #[test]
    fn a_subnet_is_enough() {
        let v4 = range("192.0.2.0/24", "", "", "");
        assert_eq!((v4.to_string(), gateway(&v4)), ("192.0.2.1-192.0.2.254".into(), "192.0.2.1".into()));
        let v6 = range("2001:db8:1::/64", "", "", "");
        assert_eq!(v6.to_string(), "2001:db8:1::1-2001:db8:1:0:ffff:ffff:ffff:ffff");
        assert_eq!(gateway(&v6), "2001:db8:1::1");
    }

    #[test]
    fn explicit_bounds_may_be_the_subnets_edges() {
        let all = range("192.0.2.0/24", "192.0.2.0", "192.0.2.255", "192.0.2.7");
        assert_eq!((all.size(), gateway(&all)), (256, "192.0.2.7".into()));
        assert_eq!(range("10.0.0.0/30", "", "", "").to_string(), "10.0.0.1-10.0.0.2");
        assert_eq!(range("fd00::/126", "", "", "").to_string(), "fd00::1-fd00::3");
    }

    #[test]
    fn a_gateway_may_be_outside_of_the_subnet() {
        assert_eq!(gateway(&range("10.2.0.0/24", "", "", "169.254.1.1")), "169.254.1.1");
    }

    #[test]
    fn a_point_to_point_subnet_has_two_addresses_and_no_default_gateway() {
        for (subnet, both) in [("10.0.0.4/31", "10.0.0.4-10.0.0.5"), ("fd00::6/127", "fd00::6-fd00::7")] {
            let link = range(subnet, "", "", "");
            assert_eq!((link.to_string(), link.size(), link.gateway()), (both.into(), 2, None));
        }
        assert_eq!(gateway(&range("10.0.0.4/31", "", "", "10.0.0.4")), "10.0.0.4");
        assert_eq!(range("255.255.255.254/31", "", "", "").to_string(), "255.255.255.254-255.255.255.255");
    }

    #[test]
    fn held_back_addresses_do_not_count() {
        let list = |texts: &[&str]| texts.iter().map(|text| text.to_string()).collect::<Vec<_>>();
        let range = Range::new(RangeSpec {
            exclude: list(&["10.1.0.0/28", "10.1.0.200-10.1.1.9"]),
            reserve: list(&["10.1.0.20", "10.1.0.15"]),
            ..spec("10.1.0.0/24", "", "", "")
        })
        .unwrap();
        let ip = |host: u8| IpAddr::from([10, 1, 0, host]);
        assert_eq!(range.size(), 254 - 15 - 55 - 1);
        assert!(range.excludes(ip(1)) && range.excludes(ip(254)) && !range.excludes(ip(20)));
        assert!(range.is_held_back(ip(20)) && range.is_held_back(ip(1)) && !range.is_held_back(ip(16)));
        assert!(!range.excludes(ip(0)), "an address outside of the range is not excluded by it");
        let refused = RangeSpec { reserve: list(&["10.2.0.1"]), ..spec("10.1.0.0/24", "", "", "") };
        assert_eq!(
            Range::new(refused).unwrap_err().to_string(),
            "ipam.reserve: \"10.2.0.1\" is invalid for 10.1.0.0/24: it is outside of the subnet"
        );
    }

    #[test]
    fn the_whole_internet_is_a_range() {
        assert_eq!(range("0.0.0.0/0", "", "", "").size(), (1 << 32) - 2);
        assert_eq!(range("::/0", "", "", "").size(), u128::MAX);
        assert_eq!(range("::/0", "::", "", "").size(), u128::MAX, "one too many to count");
    }

    #[test]
    fn invalid_ranges_are_rejected_with_the_reference_plugins_messages() {
        assert_eq!(refusal("10.2.0.0/32", "", ""), "Network 10.2.0.0/32 too small to allocate from");
        assert_eq!(refusal("fd00::/128", "", ""), "Network fd00::/128 too small to allocate from");
        assert_eq!(
            refusal("10.2.0.1/24", "", ""),
            "Network has host bits set. For a subnet mask of length 24 the network address is 10.2.0.0"
        );
        assert_eq!(refusal("10.2.0.0/24", "10.9.0.1", ""), "RangeStart 10.9.0.1 not in network 10.2.0.0/24");
        assert_eq!(refusal("10.2.0.0/24", "", "fd00::1"), "RangeEnd fd00::1 not in network 10.2.0.0/24");
        let backwards = "RangeEnd 10.2.0.5 not in network 10.2.0.0/24 after rangeStart 10.2.0.9";
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
        assert!(
            !range("::/96", "", "", "").overlaps(&range("0.0.0.0/0", "", "", "")),
            "families never overlap"
        );
    }

    #[test]
    fn an_address_gets_the_subnets_prefix() {
        let range = range("10.1.0.0/16", "10.1.5.0", "10.1.5.9", "");
        assert_eq!(range.assign("10.1.5.3".parse().unwrap()).to_string(), "10.1.5.3/16");
        assert!(range.contains("10.1.5.9".parse().unwrap()) && !range.contains("10.1.5.10".parse().unwrap()));
    }
}
