//! The indexes of a frontend's endpoints. They change as little as possible, since each change is an element.

use std::collections::HashSet;
use std::net::SocketAddr;

/// The wanted endpoints in an order that keeps those that were there at their index. A new endpoint takes the index of one
/// that is gone, or the next one; the last endpoint takes an index that is left free.
pub(super) fn keep_order(previous: &[SocketAddr], wanted: &[SocketAddr]) -> Vec<SocketAddr> {
    let mut missing: HashSet<SocketAddr> = wanted.iter().copied().collect();
    let mut places: Vec<Option<SocketAddr>> =
        previous.iter().map(|addr| missing.remove(addr).then_some(*addr)).collect();
    let mut new = wanted.iter().copied().filter(|addr| missing.contains(addr));
    places.iter_mut().filter(|place| place.is_none()).for_each(|place| *place = new.next());
    places.extend(new.map(Some));
    let mut free = 0;
    loop {
        while places.last().is_some_and(Option::is_none) {
            places.pop();
        }
        match (free..places.len()).find(|at| places[*at].is_none()) {
            Some(at) => {
                places.swap_remove(at);
                free = at;
            }
            None => return places.into_iter().flatten().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addrs(ports: &str) -> Vec<SocketAddr> {
        ports.bytes().map(|port| SocketAddr::new([10, 0, 0, 1].into(), port.into())).collect()
    }

    fn text(addrs: Vec<SocketAddr>) -> String {
        addrs.into_iter().map(|addr| char::from(addr.port() as u8)).collect()
    }

    #[test]
    fn endpoints_keep_their_index() {
        let cases = [
            ("", "", ""),
            ("", "abc", "abc"),
            ("abc", "abc", "abc"),
            ("cab", "abc", "cab"),
            // A replacement takes the index.
            ("abc", "axc", "axc"),
            ("abcd", "axyd", "axyd"),
            // The last one takes the index of a removed one.
            ("abcd", "bcd", "dbc"),
            ("abcd", "abc", "abc"),
            ("abcde", "acd", "adc"),
            ("abcde", "e", "e"),
            ("abcd", "", ""),
            ("abc", "abcxy", "abcxy"),
            ("abc", "xbcy", "xbcy"),
            // What the kernel should never have.
            ("aab", "ab", "ab"),
        ];
        let failures: Vec<String> = cases
            .iter()
            .map(|(previous, wanted, expected)| {
                (text(keep_order(&addrs(previous), &addrs(wanted))), previous, wanted, expected)
            })
            .filter(|(found, _, _, expected)| found != *expected)
            .map(|case| format!("{case:?}"))
            .collect();
        assert!(failures.is_empty(), "{failures:#?}");
    }
}
