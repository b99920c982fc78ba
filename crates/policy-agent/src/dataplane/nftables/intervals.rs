//! Networks as intervals of addresses.

use std::net::IpAddr;

use ipnet::IpNet;
use podwire_netlink::nft::{Element, Value};

/// The elements of an interval set: the start of each interval, and the address after its end. The intervals neither
/// overlap nor touch. An interval that contains the last address of its family has no end element.
pub(super) fn elements(networks: &[IpNet]) -> Vec<Element> {
    let bounds = |(first, last): (IpAddr, IpAddr)| {
        [Some(Element::key(Value::ip(first))), end(last)].into_iter().flatten().collect::<Vec<_>>()
    };
    ranges(networks).into_iter().flat_map(bounds).collect()
}

/// The element that ends an interval whose last address is `last`.
pub(super) fn end(last: IpAddr) -> Option<Element> {
    next(last).map(|end| Element::end_of_range(Value::ip(end)))
}

/// The first and last address of each interval.
pub(super) fn ranges(networks: &[IpNet]) -> Vec<(IpAddr, IpAddr)> {
    let mut sorted: Vec<IpNet> = networks.iter().map(IpNet::trunc).collect();
    sorted.sort();
    let mut ranges: Vec<(IpAddr, IpAddr)> = Vec::new();
    for network in sorted {
        let (first, last) = (network.network(), network.broadcast());
        match ranges.last_mut() {
            Some((_, end)) if first <= *end || next(*end) == Some(first) => *end = last.max(*end),
            _ => ranges.push((first, last)),
        }
    }
    ranges
}

fn next(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(v4) => v4.to_bits().checked_add(1).map(|bits| IpAddr::V4(bits.into())),
        IpAddr::V6(v6) => v6.to_bits().checked_add(1).map(|bits| IpAddr::V6(bits.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intervals(networks: &str) -> Vec<(String, bool)> {
        let networks: Vec<IpNet> = networks.split_whitespace().map(|net| net.parse().unwrap()).collect();
        elements(&networks).into_iter().map(|e| (e.key.to_string(), e.ends_range)).collect()
    }

    #[test]
    fn adjacent_networks_become_one_interval() {
        let one = [("10.0.0.2".to_owned(), false), ("10.0.0.8".to_owned(), true)];
        assert_eq!(intervals("10.0.0.2/31 10.0.0.4/30"), one);
        assert_eq!(intervals("10.0.0.4/30 10.0.0.2/31 10.0.0.5/32"), one);
    }

    #[test]
    fn the_interval_of_all_addresses_has_no_end() {
        assert_eq!(intervals("0.0.0.0/0"), [("0.0.0.0".to_owned(), false)]);
        assert_eq!(intervals("::/0 fd00::/8"), [("::".to_owned(), false)]);
    }
}
