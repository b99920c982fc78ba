//! Which failed packets the policies of this node deny.
//!
//! The policy agent's rules count dropped packets by pod and by reason. Each packet that failed is sent once more, alone. If
//! meanwhile the counters grow for its sender or its receiver, and the reason is a policy, then that policy denies it. What
//! never reaches the rules, what they drop for another reason, and what another node drops, stays a failure.

use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use podwire_policy::Direction;
use podwire_policy_agent::dataplane::{DropCounters, DropCounts};
use podwire_verify::{ping, Endpoint, Outcome, Protocol, Report};

/// How long to wait after a packet. The rules have counted it long before.
const WAIT: Duration = Duration::from_millis(100);
/// The number of packets that are sent again: a broken network must not delay the report for long.
const MAX_RESENT: usize = 500;

/// Marks the failures that policies explain. `endpoints` are the first ones of the report.
pub(super) fn mark(report: &mut Report, endpoints: &[Endpoint]) {
    let Ok(mut counters) = DropCounters::open() else { return };
    // Without an agent that enforces policies there are no counters.
    if counters.read().is_ok_and(|counts| counts.reasons.is_empty()) {
        return;
    }
    let mut resent = 0;
    report.apply_policies(|outcome| {
        if outcome.result.is_ok() || resent == MAX_RESENT {
            return None;
        }
        resent += 1;
        let name = |at: usize| endpoints.get(at).map(|endpoint| endpoint.name.as_str());
        let before = counters.read().ok()?;
        endpoints.get(outcome.from)?.netns.run(|| send(outcome)).ok()?;
        let after = counters.read().ok()?;
        let ends = [(Direction::Egress, name(outcome.from)), (Direction::Ingress, name(outcome.to))];
        ends.into_iter().find_map(|(direction, pod)| denial(&before, &after, direction, pod?))
    });
}

/// Sends a packet like that of `outcome`. The calling thread is in the sender's namespace. The answer does not matter.
fn send(outcome: &Outcome) {
    let to = SocketAddr::new(outcome.address, outcome.port.unwrap_or_default());
    match outcome.protocol {
        Protocol::Tcp => drop(TcpStream::connect_timeout(&to, WAIT)),
        Protocol::Icmp => drop(ping(outcome.address, WAIT)),
        Protocol::Udp | Protocol::Large => drop(send_datagram(to)),
    }
}

fn send_datagram(to: SocketAddr) -> std::io::Result<usize> {
    let any: IpAddr = if to.is_ipv6() { [0u8; 16].into() } else { [0u8; 4].into() };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(WAIT))?;
    socket.send(&[0])?;
    socket.recv(&mut [0; 64])
}

/// The policies that dropped packets of the pod between two readings.
fn denial(before: &DropCounts, after: &DropCounts, direction: Direction, name: &str) -> Option<String> {
    let grown = |key: &(Direction, String), count: u64, old: Option<&u64>| {
        key.0 == direction && count > old.copied().unwrap_or(0)
    };
    let is_named = |full_name: &str| {
        let pod = full_name.rsplit('/').next().unwrap_or(full_name);
        // A pod without a name in Kubernetes has the start of its container id.
        pod == name || (name.len() == 12 && pod.starts_with(name))
    };
    let pods = after.pods.iter().filter(|(key, count)| grown(key, **count, before.pods.get(*key)));
    let pod = pods.map(|((_, pod), _)| pod).find(|pod| is_named(pod))?;
    // The other reasons are not a policy's decision: a source that is not the pod's, policies that are not known yet.
    let is_policy = |reason: &str| reason.starts_with("denied by ") || reason.starts_with("isolated by ");
    let reasons = after.reasons.iter().filter(|(key, count)| grown(key, **count, before.reasons.get(*key)));
    let reasons: Vec<&str> =
        reasons.map(|((_, reason), _)| reason.as_str()).filter(|reason| is_policy(reason)).collect();
    (!reasons.is_empty()).then(|| format!("{direction} of {pod}: {}", reasons.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(pod: u64, reason: &str, packets: u64) -> DropCounts {
        let mut counts = DropCounts::default();
        counts.pods.insert((Direction::Ingress, "shop/db".into()), pod);
        counts.reasons.insert((Direction::Ingress, reason.into()), packets);
        counts
    }

    #[test]
    fn only_drops_of_this_pod_by_a_policy_are_denials() {
        let isolated = "isolated by NetworkPolicy shop/closed";
        let (before, after) = (counts(3, isolated, 5), counts(4, isolated, 6));
        let of = |after: &DropCounts, pod| denial(&before, after, Direction::Ingress, pod);
        assert_eq!(
            of(&after, "db").as_deref(),
            Some("ingress of shop/db: isolated by NetworkPolicy shop/closed")
        );
        assert_eq!(of(&after, "web"), None, "another pod");
        assert_eq!(of(&counts(3, isolated, 6), "db"), None, "packets of another pod were dropped");
        assert_eq!(denial(&before, &after, Direction::Egress, "db"), None, "the other direction");
        let unknown = "the policies of the pod are not known yet";
        assert_eq!(of(&counts(4, unknown, 9), "db"), None, "no policy decided");
    }
}
