//! The order in which the addresses of a set are tried.

use std::net::IpAddr;

use podwire_ip::to_u128;

use crate::range::Range;
use crate::set::RangeSet;
use crate::span::Span;

/// An address that a pod may get.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'s> {
    /// The address.
    pub ip: IpAddr,
    /// Its range.
    pub range: &'s Range,
}

/// Iterates over every address of a set once, without gateways and without excluded and reserved addresses. It holds no
/// list, so that ranges may be arbitrarily large.
#[derive(Clone, Debug)]
pub struct Candidates<'s> {
    set: &'s RangeSet,
    /// The index of the first range, and the first address in it.
    first: (usize, u128),
    /// The number of spans that were begun. The first range has two: the round ends with its head.
    begun: usize,
    /// The rest of the current span.
    rest: Option<Span>,
}

impl RangeSet {
    /// All addresses, round robin from the one after `last`: to the end of its range, through the ranges after it and
    /// before it, and back to `last` itself. If `last` is not in the set, from the start.
    pub fn after(&self, last: Option<IpAddr>) -> Candidates<'_> {
        let ranges = self.ranges();
        let found = last
            .and_then(|last| Some((ranges.iter().position(|range| range.contains(last))?, to_u128(last))));
        let first = match found {
            Some((i, last)) if last < ranges[i].bounds().1 => (i, last + 1),
            Some((i, _)) => {
                let next = (i + 1) % ranges.len();
                (next, ranges[next].bounds().0)
            }
            None => (0, ranges[0].bounds().0),
        };
        Candidates { set: self, first, begun: 0, rest: None }
    }
}

impl Candidates<'_> {
    /// The span with this index.
    fn span(&self, index: usize) -> Option<Span> {
        let (ranges, (i, from)) = (self.set.ranges(), self.first);
        let (start, end) = ranges[(i + index) % ranges.len()].bounds();
        match index {
            0 => Some((from, end)),
            _ if index < ranges.len() => Some((start, end)),
            _ if index == ranges.len() && from > start => Some((start, from - 1)),
            _ => None,
        }
    }
}

impl<'s> Iterator for Candidates<'s> {
    type Item = Candidate<'s>;

    fn next(&mut self) -> Option<Candidate<'s>> {
        loop {
            let (at, end) = match self.rest {
                Some(rest) => rest,
                None => {
                    let span = self.span(self.begun)?;
                    self.begun += 1;
                    span
                }
            };
            let ranges = self.set.ranges();
            let range = &ranges[(self.first.0 + self.begun - 1) % ranges.len()];
            if let Some(last) = range.held_back_until(at) {
                // Skips the whole span at once: it may be very large.
                self.rest = (last < end).then(|| (last + 1, end));
                continue;
            }
            self.rest = (at < end).then(|| (at + 1, end));
            let ip = range.address(at);
            if !self.set.is_gateway(ip) {
                return Some(Candidate { ip, range });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use ipnet::IpNet;
    use proptest::prelude::*;

    use super::*;
    use crate::range::RangeSpec;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn set(ranges: &[(&str, &str, &str)]) -> RangeSet {
        let spec = |(subnet, start, end): &(&str, &str, &str)| RangeSpec {
            start: Some(ip(start)),
            end: Some(ip(end)),
            ..RangeSpec::new("x", subnet.parse().unwrap())
        };
        RangeSet::new(ranges.iter().map(spec).collect()).unwrap()
    }

    fn walk(set: &RangeSet, last: &str) -> Vec<String> {
        let last = (!last.is_empty()).then(|| ip(last));
        set.after(last).map(|candidate| candidate.ip.to_string()).collect()
    }

    #[test]
    fn a_round_begins_after_the_last_address_and_ends_with_it() {
        let set = set(&[("10.1.0.0/24", "10.1.0.1", "10.1.0.4"), ("10.2.0.0/24", "10.2.0.5", "10.2.0.6")]);
        assert_eq!(walk(&set, ""), ["10.1.0.2", "10.1.0.3", "10.1.0.4", "10.2.0.5", "10.2.0.6"]);
        assert_eq!(walk(&set, "10.1.0.3"), ["10.1.0.4", "10.2.0.5", "10.2.0.6", "10.1.0.2", "10.1.0.3"]);
        assert_eq!(walk(&set, "10.1.0.4")[0], "10.2.0.5");
        assert_eq!(walk(&set, "10.2.0.6"), walk(&set, ""), "after the very last comes the first");
        assert_eq!(walk(&set, "10.9.9.9"), walk(&set, ""), "an address of an older configuration is ignored");
        assert_eq!(walk(&set, "fd00::1"), walk(&set, ""));
    }

    #[test]
    fn a_range_with_only_a_gateway_has_no_candidate() {
        assert!(walk(&set(&[("10.1.0.0/24", "10.1.0.1", "10.1.0.1")]), "").is_empty());
        assert_eq!(walk(&set(&[("10.1.0.0/24", "10.1.0.9", "10.1.0.9")]), "10.1.0.9"), ["10.1.0.9"]);
    }

    #[test]
    fn excluded_and_reserved_addresses_are_skipped() {
        let list = |text: &str| vec![text.to_string()];
        let kept = |subnet: &str, exclude: &str, reserve: &str| {
            let whole = RangeSpec::new("x", subnet.parse().unwrap());
            RangeSet::new(vec![RangeSpec { exclude: list(exclude), reserve: list(reserve), ..whole }])
                .unwrap()
        };
        let small = kept("10.1.0.0/29", "10.1.0.2-10.1.0.3", "10.1.0.5");
        assert_eq!(walk(&small, ""), ["10.1.0.4", "10.1.0.6"]);
        assert_eq!(walk(&small, "10.1.0.4"), ["10.1.0.6", "10.1.0.4"]);
        assert_eq!(
            walk(&small, "10.1.0.2"),
            ["10.1.0.4", "10.1.0.6"],
            "it was assigned before it was excluded"
        );
        let huge = kept("fd00::/64", "fd00::/65", "fd00::ffff:ffff:ffff:ffff");
        assert_eq!(huge.after(None).next().unwrap().ip, ip("fd00::8000:0:0:0"));
        assert!(walk(&kept("10.1.0.0/29", "10.1.0.0/29", "10.1.0.5"), "").is_empty());
    }

    #[test]
    fn the_edges_of_the_address_space_do_not_overflow() {
        let top = set(&[(
            "ffff:ffff:ffff:ffff::/64",
            "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe",
            "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
        )]);
        assert_eq!(top.after(Some(ip("ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe"))).count(), 2);
        let all = set(&[("0.0.0.0/0", "255.255.255.254", "255.255.255.255")]);
        assert_eq!(walk(&all, "255.255.255.255"), ["255.255.255.254", "255.255.255.255"]);
    }

    #[test]
    fn a_huge_range_is_not_materialized() {
        let subnet: IpNet = "2001:db8::/32".parse().unwrap();
        let set = RangeSet::new(vec![RangeSpec::new("x", subnet)]).unwrap();
        let last = ip("2001:db8:1:2:3:4:5:ffff");
        assert_eq!(set.after(Some(last)).next().unwrap().ip, ip("2001:db8:1:2:3:4:6:0"));
    }

    /// Up to four ranges of one family in separate subnets, with bounds and a gateway anywhere.
    fn sets() -> impl Strategy<Value = RangeSet> {
        let range = (any::<u8>(), any::<u8>(), any::<u8>(), any::<u8>(), 0u8..20);
        (any::<bool>(), proptest::collection::vec(range, 1..5)).prop_map(|(v4, ranges)| {
            let spec = |(i, (a, b, gateway, from, some)): (usize, (u8, u8, u8, u8, u8))| {
                let at = |host: u8| {
                    if v4 {
                        ip(&format!("10.{i}.0.{host}"))
                    } else {
                        ip(&format!("fd00:{i}::{host:x}"))
                    }
                };
                let subnet = if v4 { format!("10.{i}.0.0/24") } else { format!("fd00:{i}::/64") };
                RangeSpec {
                    start: Some(at(a.min(b))),
                    end: Some(at(a.max(b))),
                    gateway: Some(at(gateway)),
                    exclude: vec![format!("{}-{}", at(from), at(from.saturating_add(some)))],
                    reserve: vec![at(some).to_string()],
                    ..RangeSpec::new("x", subnet.parse().unwrap())
                }
            };
            RangeSet::new(ranges.into_iter().enumerate().map(spec).collect()).unwrap()
        })
    }

    proptest! {
        #[test]
        fn a_round_visits_every_address_once_and_no_gateway(set in sets(), range in any::<usize>(), host in any::<u8>()) {
            let range = &set.ranges()[range % set.ranges().len()];
            let last = range.address(to_u128(range.subnet().network()) + u128::from(host));
            let visited: Vec<Candidate<'_>> = set.after(Some(last)).collect();
            let distinct: HashSet<IpAddr> = visited.iter().map(|candidate| candidate.ip).collect();
            prop_assert_eq!(distinct.len(), visited.len());
            prop_assert_eq!(visited.len() as u128, set.size());
            for candidate in &visited {
                prop_assert!(candidate.range.contains(candidate.ip) && candidate.range.subnet().contains(&candidate.ip));
                prop_assert!(set.offers(candidate.ip));
            }
            if set.offers(last) {
                prop_assert_eq!(visited.last().map(|candidate| candidate.ip), Some(last));
            }
        }

        #[test]
        fn rounds_are_rotations_of_each_other(set in sets(), steps in 0usize..300) {
            let from_start: Vec<IpAddr> = set.after(None).map(|candidate| candidate.ip).collect();
            prop_assume!(!from_start.is_empty());
            let at = steps % from_start.len();
            let after: Vec<IpAddr> = set.after(Some(from_start[at])).map(|candidate| candidate.ip).collect();
            let mut rotated = from_start.clone();
            rotated.rotate_left(at + 1);
            prop_assert_eq!(after, rotated);
        }
    }
}
