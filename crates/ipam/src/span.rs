//! Excluded and reserved addresses: a single address, a network, or `first-last`.

use std::net::IpAddr;

use ipnet::IpNet;
use podwire_ip::{to_u128, IpFamily};

/// Consecutive addresses: the first and the last, as integers.
pub(crate) type Span = (u128, u128);

const INVALID: &str = "it is not an address, a network or a range";

/// Parses `10.1.0.5`, `10.1.0.0/28` or `10.1.0.5-10.1.0.9`. At least one address must be in `subnet`.
pub(crate) fn parse(text: &str, subnet: IpNet) -> Result<Span, &'static str> {
    let ip = |text: &str| text.trim().parse::<IpAddr>().map(|ip| ip.to_canonical()).map_err(|_| INVALID);
    let (first, last) = if let Some((first, last)) = text.split_once('-') {
        (ip(first)?, ip(last)?)
    } else if text.contains('/') {
        let net: IpNet = text.trim().parse().map_err(|_| INVALID)?;
        (net.network(), net.broadcast())
    } else {
        (ip(text)?, ip(text)?)
    };
    let family = IpFamily::of_net(subnet);
    if IpFamily::of(first) != family || IpFamily::of(last) != family {
        return Err("it has the other IP family");
    }
    let (first, last) = (to_u128(first), to_u128(last));
    if first > last {
        return Err("it ends before it starts");
    }
    if last < to_u128(subnet.network()) || first > to_u128(subnet.broadcast()) {
        return Err("it is outside of the subnet");
    }
    Ok((first, last))
}

/// Sorts spans, merges overlapping and adjacent ones, and cuts them to `bounds`.
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

/// The span that contains `number`.
pub(crate) fn find(merged: &[Span], number: u128) -> Option<Span> {
    let behind = merged.partition_point(|(first, _)| *first <= number);
    merged.get(behind.checked_sub(1)?).copied().filter(|(_, last)| number <= *last)
}

/// The total number of addresses.
pub(crate) fn size(merged: &[Span]) -> u128 {
    merged.iter().fold(0, |sum, (first, last)| sum.saturating_add((last - first).saturating_add(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, subnet: &str) -> Result<(u128, u128), &'static str> {
        let subnet: IpNet = subnet.parse().unwrap();
        let start = to_u128(subnet.network());
        parse(text, subnet).map(|(first, last)| (first - start, last - start))
    }

    #[test]
    fn three_notations_are_parsed() {
        assert_eq!(read("10.1.0.5", "10.1.0.0/24"), Ok((5, 5)));
        assert_eq!(read("10.1.0.16/28", "10.1.0.0/24"), Ok((16, 31)));
        assert_eq!(read("10.1.0.20/28", "10.1.0.0/24"), Ok((16, 31)), "host bits do not matter");
        assert_eq!(read("10.1.0.5 - 10.1.0.9", "10.1.0.0/24"), Ok((5, 9)));
        assert_eq!(read("fd00::5-fd00::9", "fd00::/64"), Ok((5, 9)));
        assert_eq!(read("fd00::/112", "fd00::/64"), Ok((0, 0xffff)));
    }

    #[test]
    fn invalid_texts_are_rejected_with_a_reason() {
        for (text, why) in [
            ("ten", INVALID),
            ("", INVALID),
            ("10.1.0.0/33", INVALID),
            ("10.1.0.5-", INVALID),
            ("fd00::1", "it has the other IP family"),
            ("10.1.0.5-fd00::1", "it has the other IP family"),
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
