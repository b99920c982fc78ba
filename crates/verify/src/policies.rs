//! What policies say about the packets of a verification. The oracle decides about each packet from the objects of the
//! nodes at its ends: the sender's node enforces egress, the receiver's node ingress.
//!
//! A lost packet that the oracle allows is broken. A lost packet that it denies is denied. A packet that was answered
//! although the oracle denies it is a failure: the policy is not enforced.

use podwire_policy::oracle::{self, Decision};
use podwire_policy::{Direction, Packet, Snapshot, Verdict};

use crate::{Outcome, Protocol, Report};

impl Report {
    /// Separates what policies deny from what is broken. `policies_of` returns the objects by which the node of an
    /// endpoint (an index of [`Report::endpoints`]) decides; `None` if no policies are known there. Then those of the
    /// other end's node decide about both directions.
    pub fn apply_policies<'a>(&mut self, policies_of: impl Fn(usize) -> Option<&'a Snapshot>) {
        for outcome in &mut self.outcomes {
            let (sender, receiver) = (policies_of(outcome.from), policies_of(outcome.to));
            let (Some(sender), Some(receiver)) = (sender.or(receiver), receiver.or(sender)) else { continue };
            let Some(policies) = outcome.packet().and_then(|packet| denial(sender, receiver, &packet)) else {
                continue;
            };
            if !outcome.answered {
                outcome.denied = Some(policies);
                continue;
            }
            let breach = format!("arrived, but policies deny it: {policies}");
            outcome.result = Err(match &outcome.result {
                Ok(_) => breach,
                Err(reason) => format!("{breach}; {reason}"),
            });
        }
    }
}

impl Outcome {
    /// The probe's first packet; `None` if its sender has no route.
    fn packet(&self) -> Option<Packet> {
        let protocol = match self.protocol {
            Protocol::Tcp => Some(podwire_policy::Protocol::Tcp),
            Protocol::Udp | Protocol::Large => Some(podwire_policy::Protocol::Udp),
            Protocol::Icmp => None,
        };
        let service = protocol.zip(self.port);
        Some(Packet { source: self.source?, destination: self.address, service })
    }
}

/// The decisions that deny a packet, as text.
fn denial(sender: &Snapshot, receiver: &Snapshot, packet: &Packet) -> Option<String> {
    let decisions = |snapshot, direction| {
        let all = oracle::evaluate(snapshot, packet).decisions.into_iter();
        all.filter(move |one: &Decision| one.direction == direction && one.verdict == Verdict::Deny)
    };
    let denying = decisions(sender, Direction::Egress).chain(decisions(receiver, Direction::Ingress));
    let reasons: Vec<String> =
        denying.map(|one| format!("{} of {}: {}", one.direction, one.pod, one.reason)).collect();
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::{Kind, ReportedEndpoint};

    const WEB: &str = "10.244.1.2";
    const DB: &str = "10.244.2.3";

    /// The pods `shop/web` and `shop/db`, one of which a policy isolates in a direction.
    fn snapshot(isolated: &str, direction: &str) -> Snapshot {
        let pod = |name: &str, ip: &str| {
            json!({ "apiVersion": "v1", "kind": "Pod",
                    "metadata": { "namespace": "shop", "name": name, "labels": { "app": name } },
                    "status": { "podIPs": [{ "ip": ip }] } })
        };
        let policy = json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": { "namespace": "shop", "name": "closed" },
            "spec": { "podSelector": { "matchLabels": { "app": isolated } }, "policyTypes": [direction] } });
        let mut snapshot = Snapshot::new();
        for object in [pod("web", WEB), pod("db", DB), policy] {
            snapshot.add(object).unwrap();
        }
        snapshot
    }

    /// A probe from the web to the database.
    fn report(result: Result<Duration, String>, answered: bool, source: Option<&str>) -> Report {
        let endpoint = |name: &str| ReportedEndpoint { name: name.into(), kind: Kind::Pod };
        let outcome = Outcome {
            from: 0,
            to: 1,
            source: source.map(|ip| ip.parse().unwrap()),
            address: DB.parse().unwrap(),
            protocol: Protocol::Icmp,
            port: None,
            result,
            answered,
            denied: None,
        };
        Report {
            endpoints: vec![endpoint("shop/web"), endpoint("shop/db")],
            outcomes: vec![outcome],
            missing: Vec::new(),
            disturbance: None,
        }
    }

    fn lost() -> Result<Duration, String> {
        Err("no answer".into())
    }

    const DENIED: &str = "ingress of shop/db: the pod is isolated and no rule allows it: shop/closed";

    #[test]
    fn a_lost_packet_is_denied_only_if_the_oracle_denies_it() {
        let cases = [
            (snapshot("db", "Ingress"), Some(DENIED)),
            (snapshot("db", "Egress"), None),
            (snapshot("web", "Ingress"), None),
            (
                snapshot("web", "Egress"),
                Some("egress of shop/web: the pod is isolated and no rule allows it: shop/closed"),
            ),
        ];
        for (policies, denied) in cases {
            let mut report = report(lost(), false, Some(WEB));
            report.apply_policies(|_| Some(&policies));
            assert_eq!(report.outcomes[0].denied.as_deref(), denied);
            assert_eq!(report.holds(), denied.is_some());
        }
        let (mut report, policies) = (report(lost(), false, None), snapshot("db", "Ingress"));
        report.apply_policies(|_| Some(&policies));
        assert!(!report.holds(), "a sender without a route has sent nothing that a policy could deny");
    }

    #[test]
    fn an_answer_to_a_denied_packet_is_a_failure() {
        let policies = snapshot("db", "Ingress");
        let results = [
            (Ok(Duration::from_millis(1)), format!("arrived, but policies deny it: {DENIED}")),
            (
                Err("NAT changed it".into()),
                format!("arrived, but policies deny it: {DENIED}; NAT changed it"),
            ),
        ];
        for (result, failure) in results {
            let mut report = report(result, true, Some(WEB));
            report.apply_policies(|_| Some(&policies));
            let outcome = &report.outcomes[0];
            assert_eq!((&outcome.result, &outcome.denied), (&Err(failure), &None));
            assert!(!report.holds());
        }
    }

    /// The node of an end decides about the direction of that end. The other node may not know the pod.
    #[test]
    fn each_node_decides_about_its_own_pods() {
        let (denies, allows) = (snapshot("db", "Ingress"), snapshot("another", "Ingress"));
        let cases = [
            ([Some(&allows), Some(&denies)], true),
            ([Some(&denies), Some(&allows)], false),
            ([Some(&denies), None], true),
            ([None, Some(&denies)], true),
            ([None, None], false),
        ];
        for (of_nodes, denied) in cases {
            let mut report = report(lost(), false, Some(WEB));
            report.apply_policies(|at| of_nodes[at]);
            assert_eq!(report.holds(), denied, "{:?}", report.outcomes[0].denied);
        }
    }
}
