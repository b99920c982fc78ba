//! The lost packets of a ping.

use std::collections::BTreeSet;

/// On a busy machine the packets of the last second, at twenty a second, can be unanswered at the end.
const ON_THEIR_WAY: u32 = 20;

/// The sequence numbers of packets that were lost after the first answer, from the output of an interrupted `ping`.
#[track_caller]
pub fn lost_packets(said: &str) -> Vec<u32> {
    let number = |text: &str| -> Option<u32> {
        let digits = text.split(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse().ok()
    };
    let answer = |line: &str| {
        let (from, rest) = line.split_once("icmp_seq=")?;
        // The error of a router without a route has the same number.
        number(rest).filter(|_| from.contains("bytes from"))
    };
    let answered: BTreeSet<u32> = said.lines().filter_map(answer).collect();
    let first = answered.first().copied().unwrap_or(1);
    let last = answered.last().copied().unwrap_or_default();
    let sum = said.lines().find(|line| line.contains("packets transmitted")).and_then(number);
    let sent = sum.unwrap_or_else(|| panic!("ping printed no summary: {said}"));
    let expected = if last + ON_THEIR_WAY >= sent { last } else { sent };
    (first..=expected).filter(|number| !answered.contains(number)).collect()
}

#[cfg(test)]
mod tests {
    use super::lost_packets;

    fn said(answered: &[u32], sent: u32) -> String {
        let answer =
            |number: &u32| format!("64 bytes from 10.1.0.5: icmp_seq={number} ttl=64 time=0.05 ms\n");
        let answers: String = answered.iter().map(answer).collect();
        let unreachable = "From 10.1.0.1 icmp_seq=4 Destination Host Unreachable\n";
        format!("{answers}{unreachable}\n--- 10.1.0.5 ping statistics ---\n{sent} packets transmitted, 9 received\n")
    }

    #[test]
    fn gaps_are_lost_and_the_last_ones_are_on_their_way() {
        let lost = |answered: &[u32], sent: u32| lost_packets(&said(answered, sent)).len();
        assert_eq!(lost(&[1, 2, 3], 3), 0);
        assert_eq!(lost(&[1, 3, 2], 23), 0);
        assert_eq!(lost(&[1, 2, 3], 24), 21);
        assert_eq!(lost(&[1, 3, 5], 6), 2);
        assert_eq!(lost(&[2, 3], 3), 0);
        assert_eq!(lost(&[], 30), 30);
    }
}
