//! Range sets: alternative ranges of one family.

use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;

use podwire_ip::IpFamily;

use crate::error::Error;
use crate::range::{Range, RangeSpec};

/// Disjoint ranges of one family. A pod gets one address of the whole set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeSet(Vec<Range>);

/// Checks all ranges of a configuration: each by itself, within its set and against the other sets.
pub fn range_sets(specs: Vec<Vec<RangeSpec>>) -> Result<Vec<RangeSet>, Error> {
    let set = |(set, specs)| RangeSet::new(specs).map_err(|why| Error::InSet { set, why: Box::new(why) });
    let sets = specs.into_iter().enumerate().map(set).collect::<Result<Vec<_>, _>>()?;
    for (i, first) in sets.iter().enumerate() {
        for (j, second) in sets.iter().enumerate().skip(i + 1) {
            if let Some((one, other)) = first.common(second) {
                return Err(Error::SetsOverlap { sets: (i, j), keys: (one.key.clone(), other.key.clone()) });
            }
        }
    }
    Ok(sets)
}

impl RangeSet {
    /// Checks the ranges of one set.
    pub fn new(specs: Vec<RangeSpec>) -> Result<RangeSet, Error> {
        let ranges = specs.into_iter().map(Range::new).collect::<Result<Vec<_>, _>>()?;
        let Some(first) = ranges.first() else { return Err(Error::Empty) };
        if let Some(other) = ranges.iter().find(|range| range.family() != first.family()) {
            return Err(Error::MixedFamilies { first: first.key.clone(), second: other.key.clone() });
        }
        for (i, one) in ranges.iter().enumerate() {
            if let Some(other) = ranges[i + 1..].iter().find(|other| one.overlaps(other)) {
                return Err(Error::RangesOverlap {
                    first: one.to_string(),
                    second: other.to_string(),
                    keys: (one.key.clone(), other.key.clone()),
                });
            }
        }
        Ok(RangeSet(ranges))
    }

    /// The ranges, at least one.
    pub fn ranges(&self) -> &[Range] {
        &self.0
    }

    /// The range that contains `ip`.
    pub fn find(&self, ip: IpAddr) -> Option<&Range> {
        self.0.iter().find(|range| range.contains(ip))
    }

    /// Whether a range contains `ip`. Gateways count too.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.find(ip).is_some()
    }

    /// Whether `ip` is the gateway of any of the ranges. No pod gets it, whichever range contains it.
    pub fn is_gateway(&self, ip: IpAddr) -> bool {
        self.0.iter().any(|range| range.gateway() == Some(ip))
    }

    /// Whether `ip` is excluded, so that no pod gets it.
    pub fn excludes(&self, ip: IpAddr) -> bool {
        self.0.iter().any(|range| range.excludes(ip))
    }

    /// Whether a pod that requests no specific address may get `ip`.
    pub fn offers(&self, ip: IpAddr) -> bool {
        !self.is_gateway(ip) && self.is_assignable(ip)
    }

    /// The family of all ranges.
    pub fn family(&self) -> IpFamily {
        self.0[0].family()
    }

    /// The number of addresses that pods can get without a request for a specific one. Saturates at the maximum of
    /// `u128`.
    pub fn size(&self) -> u128 {
        let all = self.0.iter().fold(0u128, |sum, range| sum.saturating_add(range.size()));
        let gateways: HashSet<IpAddr> =
            self.0.iter().filter_map(Range::gateway).filter(|ip| self.is_assignable(*ip)).collect();
        all.saturating_sub(gateways.len() as u128)
    }

    /// Whether `ip` is in a range and neither excluded nor reserved. It may be a gateway.
    fn is_assignable(&self, ip: IpAddr) -> bool {
        self.find(ip).is_some_and(|range| !range.is_held_back(ip))
    }

    fn common<'s>(&'s self, other: &'s RangeSet) -> Option<(&'s Range, &'s Range)> {
        self.0.iter().find_map(|one| Some((one, other.0.iter().find(|other| one.overlaps(other))?)))
    }
}

impl fmt::Display for RangeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, range) in self.0.iter().enumerate() {
            write!(f, "{}{range}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn specs(sets: &[&[&str]]) -> Vec<Vec<RangeSpec>> {
        let spec = |i: usize, j: usize, text: &str| {
            let mut parts = text.split(' ');
            let subnet = parts.next().unwrap().parse().unwrap();
            let mut ip = || parts.next().map(|text| text.parse().unwrap());
            let whole = RangeSpec::new(format!("ipam.ranges[{i}][{j}]"), subnet);
            RangeSpec { start: ip(), end: ip(), gateway: ip(), ..whole }
        };
        let set =
            |(i, set): (usize, &&[&str])| set.iter().enumerate().map(|(j, text)| spec(i, j, text)).collect();
        sets.iter().enumerate().map(set).collect()
    }

    fn refusal(sets: &[&[&str]]) -> String {
        range_sets(specs(sets)).unwrap_err().to_string()
    }

    #[test]
    fn a_set_is_shown_as_its_ranges() {
        let sets = range_sets(specs(&[&["10.1.0.0/30", "10.2.0.0/24"], &["fd00::/64"]])).unwrap();
        assert_eq!(sets[0].to_string(), "10.1.0.1-10.1.0.2,10.2.0.1-10.2.0.254");
        assert_eq!((sets[0].size(), sets[0].family(), sets[1].family()), (254, IpFamily::V4, IpFamily::V6));
        assert_eq!(sets[1].size(), u128::from(u64::MAX) - 1);
    }

    #[test]
    fn invalid_sets_are_rejected() {
        assert_eq!(refusal(&[&["10.1.0.0/24"], &[]]), "invalid range set 1: empty range set");
        assert_eq!(refusal(&[&["10.1.0.0/24", "fd00::/64"]]), "invalid range set 0: mixed address families");
        assert_eq!(
            refusal(&[&["10.2.0.0/24", "10.2.0.0/25"]]),
            "invalid range set 0: subnets 10.2.0.1-10.2.0.254 and 10.2.0.1-10.2.0.126 overlap"
        );
        assert_eq!(
            refusal(&[&["10.1.0.0/24"], &["10.3.0.0/24", "10.1.0.0/16"]]),
            "range set 0 overlaps with 1"
        );
        assert_eq!(
            refusal(&[&["10.1.0.0/24 10.9.0.1"]]),
            "invalid range set 0: RangeStart 10.9.0.1 not in network 10.1.0.0/24"
        );
    }

    #[test]
    fn a_subnet_may_be_split_between_sets() {
        let halves: &[&[&str]] = &[&["10.1.0.0/24 10.1.0.2 10.1.0.99"], &["10.1.0.0/24 10.1.0.100"]];
        assert!(range_sets(specs(halves)).is_ok());
    }

    #[test]
    fn no_pod_gets_a_gateway_of_the_set() {
        let one = &["10.1.0.0/24 10.1.0.1 10.1.0.99", "10.1.0.0/24 10.1.0.100 10.1.0.200 10.1.0.50"];
        let set = range_sets(specs(&[one])).unwrap().remove(0);
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert!(
            set.is_gateway(ip("10.1.0.50"))
                && set.is_gateway(ip("10.1.0.1"))
                && !set.is_gateway(ip("10.1.0.100"))
        );
        assert_eq!(set.size(), 198);
        let away = specs(&[&["10.1.0.0/30 10.1.0.1 10.1.0.2 10.9.0.1"]]);
        assert_eq!(range_sets(away).unwrap()[0].size(), 2, "a gateway outside of the range costs no address");
    }
}
