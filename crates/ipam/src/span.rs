//! Addresses that a range keeps back, and how they are written: one, a network, or from one to another.

use std::net::IpAddr;

use ipnet::IpNet;

use podwire_ip::to_u128 as number;

/// Neighbouring addresses, first and last, as numbers.
pub(crate) type Span = (u128, u128);

/// Reads `10.1.0.5`, `10.1.0.0/28` or `10.1.0.5-10.1.0.9`, of which at least one address must be of `subnet`.
pub(crate) fn parse(text: &str, subnet: IpNet) -> Result<Span, &'static str> {
    let ip = |text: &str| text.trim().parse::<IpAddr>().map(|ip| ip.to_canonical()).map_err(|_| "it is none");
    let (first, last) = match (text.split_once('-'), text.contains('/')) {
        (Some((first, last)), _) => (ip(first)?, ip(last)?),
        (None, true) => {
            let net: IpNet = text.trim().parse().map_err(|_| "it is none")?;
            (net.network(), net.broadcast())
        }
        (None, false) => (ip(text)?, ip(text)?),
    };
    if first.is_ipv4() != last.is_ipv4() || first.is_ipv4() != subnet.addr().is_ipv4() {
        return Err("it is of the other family");
    }
    let (first, last) = (number(first), number(last));
    if first > last {
        return Err("it ends before it starts");
    }
    if last < number(subnet.network()) || first > number(subnet.broadcast()) {
        return Err("it is outside of the subnet");
    }
    Ok((first, last))
}

/// Sorted, without overlaps and neighbours, and nothing outside of `bounds`.
pub(crate) fn merge(mut spans: Vec<Span>, bounds: Span) -> Vec<Span> {
    spans.sort_unstable();
    let mut merged: Vec<Span> = Vec::with_capacity(spans.len());
    for (first, last) in spans {
        let (first, last) = (first.max(bounds.0), last.min(bounds.1));
        match merged.last_mut() {
            _ if first > last => {}
            Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
            _ => merged.push((first, last)),
        }
    }
    merged
}

/// The span that `number` is in.
pub(crate) fn find(merged: &[Span], number: u128) -> Option<Span> {
    let behind = merged.partition_point(|(first, _)| *first <= number);
    merged.get(behind.checked_sub(1)?).copied().filter(|(_, last)| number <= *last)
}

/// How many addresses there are in all.
pub(crate) fn size(merged: &[Span]) -> u128 {
    merged.iter().fold(0, |sum, (first, last)| sum.saturating_add((last - first).saturating_add(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, subnet: &str) -> Result<(u128, u128), &'static str> {
        let subnet: IpNet = subnet.parse().unwrap();
        let start = number(subnet.network());
        parse(text, subnet).map(|(first, last)| (first - start, last - start))
    }

    #[test]
    fn three_ways_to_write() {
        assert_eq!(read("10.1.0.5", "10.1.0.0/24"), Ok((5, 5)));
        assert_eq!(read("10.1.0.16/28", "10.1.0.0/24"), Ok((16, 31)));
        assert_eq!(read("10.1.0.20/28", "10.1.0.0/24"), Ok((16, 31)), "host bits do not matter");
        assert_eq!(read("10.1.0.5 - 10.1.0.9", "10.1.0.0/24"), Ok((5, 9)));
        assert_eq!(read("fd00::5-fd00::9", "fd00::/64"), Ok((5, 9)));
        assert_eq!(read("fd00::/112", "fd00::/64"), Ok((0, 0xffff)));
    }

    #[test]
    fn nonsense_is_told_apart() {
        for (text, why) in [
            ("ten", "it is none"),
            ("", "it is none"),
            ("10.1.0.0/33", "it is none"),
            ("10.1.0.5-", "it is none"),
            ("fd00::1", "it is of the other family"),
            ("10.1.0.5-fd00::1", "it is of the other family"),
            ("10.1.0.9-10.1.0.5", "it ends before it starts"),
            ("10.2.0.0/24", "it is outside of the subnet"),
        ] {
            assert_eq!(read(text, "10.1.0.0/24"), Err(why), "{text:?}");
        }
    }

    #[test]
    fn merged_stretches_are_apart_and_inside() {
        let merged = merge(vec![(8, 9), (2, 4), (5, 6), (3, 3), (20, 40), (0, 1)], (1, 30));
        assert_eq!(merged, [(1, 6), (8, 9), (20, 30)]);
        assert_eq!(size(&merged), 19);
        assert_eq!(find(&merged, 6), Some((1, 6)));
        assert_eq!((find(&merged, 0), find(&merged, 7), find(&merged, 31)), (None, None, None));
        assert_eq!(merge(vec![(0, u128::MAX)], (0, u128::MAX)), [(0, u128::MAX)]);
        assert_eq!(size(&[(0, u128::MAX)]), u128::MAX, "one too many to count");
    }
}
