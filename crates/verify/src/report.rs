//! The result of a verification: every probe with its outcome, and summaries.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use serde_json::{json, Value};

use crate::{Kind, Protocol};

/// One probe and its outcome.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The sender: an index of [`Report::endpoints`].
    pub from: usize,
    /// The receiver: an index of [`Report::endpoints`].
    pub to: usize,
    /// The address that the sender's kernel selected, if it has a route.
    pub source: Option<IpAddr>,
    /// The receiver's address.
    pub address: IpAddr,
    /// The kind of packet.
    pub protocol: Protocol,
    /// The receiver's port; none for ICMP.
    pub port: Option<u16>,
    /// The round-trip time, or why the probe failed.
    pub result: Result<Duration, String>,
    /// Whether the receiver answered, even if the answer is wrong or incomplete.
    pub answered: bool,
    /// The policy that denies this packet. The failure is then expected.
    pub denied: Option<String>,
}

/// What should be there and could not be probed: a pod, a node, or an address of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The name of the pod or node.
    pub name: String,
    /// Pod or node.
    pub kind: Kind,
    /// What is missing, and why.
    pub reason: String,
}

/// The outcomes of all probes.
#[derive(Clone, Debug)]
pub struct Report {
    /// The endpoints, in the order in which they were passed.
    pub endpoints: Vec<ReportedEndpoint>,
    /// All probes.
    pub outcomes: Vec<Outcome>,
    /// What should be there and could not be probed.
    pub missing: Vec<Missing>,
    /// A problem of this machine that may have made probes fail, and its remedy.
    pub disturbance: Option<String>,
}

/// The name and kind of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportedEndpoint {
    /// Its name.
    pub name: String,
    /// Pod or node.
    pub kind: Kind,
}

/// A rule of the network model and its probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its text.
    pub text: &'static str,
    /// Its probes.
    pub count: Count,
}

/// The number of some probes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// All of them.
    pub sent: usize,
    /// Those that succeeded.
    pub passed: usize,
    /// Those that a policy denies.
    pub denied: usize,
}

impl Count {
    fn add(&mut self, outcome: &Outcome) {
        self.sent += 1;
        self.passed += usize::from(outcome.result.is_ok());
        self.denied += usize::from(outcome.denied.is_some());
    }

    /// Whether every probe succeeded or was denied as expected.
    pub fn is_good(&self) -> bool {
        self.passed + self.denied == self.sent
    }
}

impl Missing {
    /// What is missing of this pod or node.
    pub fn new(name: impl Into<String>, kind: Kind, reason: impl Into<String>) -> Missing {
        Missing { name: name.into(), kind, reason: reason.into() }
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Pod => "pod",
            Kind::Node => "node",
        };
        write!(f, "{kind} {}: {}", self.name, self.reason)
    }
}

impl Report {
    /// The probes that failed and that no policy denies.
    pub fn failures(&self) -> impl Iterator<Item = &Outcome> {
        self.outcomes.iter().filter(|outcome| outcome.result.is_err() && outcome.denied.is_none())
    }

    /// The probes that a policy denies.
    pub fn denials(&self) -> impl Iterator<Item = &Outcome> {
        self.outcomes.iter().filter(|outcome| outcome.denied.is_some())
    }

    /// Whether there was at least one probe, none failed that policies allow, and nothing is missing.
    pub fn holds(&self) -> bool {
        !self.outcomes.is_empty() && self.missing.is_empty() && self.failures().next().is_none()
    }

    /// The probes of each pair (from, to).
    pub fn matrix(&self) -> HashMap<(usize, usize), Count> {
        let mut cells: HashMap<_, Count> = HashMap::new();
        for outcome in &self.outcomes {
            cells.entry((outcome.from, outcome.to)).or_default().add(outcome);
        }
        cells
    }

    /// The three rules of the network model.
    pub fn rules(&self) -> [Rule; 3] {
        let count = |asks: &dyn Fn(&Outcome) -> bool| {
            let mut count = Count::default();
            self.outcomes.iter().filter(|one| asks(one)).for_each(|one| count.add(one));
            count
        };
        let between = |one: &Outcome, from: Kind| {
            self.endpoints[one.from].kind == from && self.endpoints[one.to].kind == Kind::Pod
        };
        let pods = count(&|one| between(one, Kind::Pod));
        let nodes = count(&|one| between(one, Kind::Node));
        // An ICMP echo reply does not contain the source address that the receiver saw.
        let seen = count(&|one| between(one, Kind::Pod) && one.protocol != Protocol::Icmp);
        [
            Rule { text: "every pod reaches every pod", count: pods },
            Rule { text: "every node reaches every pod", count: nodes },
            Rule { text: "a pod is seen with its own address", count: seen },
        ]
    }

    /// One failure as text.
    pub fn sentence(&self, outcome: &Outcome) -> String {
        let Outcome { from, to, address, protocol, .. } = outcome;
        let reason = outcome.result.as_ref().err().map_or("", |reason| reason);
        format!("{} to {} ({address}, {protocol}): {reason}", self.name(*from), self.name(*to))
    }

    /// Failures as text, one line for each pair: `one to two: no answer within 2000 ms (10.7.0.3 tcp udp)`.
    pub fn failures_by_pair(&self) -> Vec<String> {
        self.by_pair(self.failures().map(|one| (one, one.result.as_ref().err())))
    }

    /// Denied packets as text, one line for each pair.
    pub fn denials_by_pair(&self) -> Vec<String> {
        self.by_pair(self.denials().map(|one| (one, one.denied.as_ref())))
    }

    fn by_pair<'a>(&self, outcomes: impl Iterator<Item = (&'a Outcome, Option<&'a String>)>) -> Vec<String> {
        let line = |((from, to), reasons)| format!("{} to {}: {reasons}", self.name(from), self.name(to));
        group_by_pair(outcomes).into_iter().map(line).collect()
    }

    fn name(&self, at: usize) -> &str {
        self.endpoints.get(at).map_or("?", |one| &one.name)
    }

    /// The report as JSON.
    pub fn to_json(&self) -> Value {
        let name = |at: usize| self.endpoints.get(at).map(|one| one.name.as_str());
        let outcome = |one: &Outcome| {
            json!({
                "from": name(one.from),
                "to": name(one.to),
                "source": one.source,
                "address": one.address,
                "protocol": one.protocol.to_string(),
                "microseconds": one.result.as_ref().ok().map(|time| time.as_micros() as u64),
                "failure": one.result.as_ref().err().filter(|_| one.denied.is_none()),
                "denied": one.denied,
            })
        };
        let missing = |one: &Missing| json!({ "name": one.name, "kind": one.kind, "reason": one.reason });
        let endpoint = |one: &ReportedEndpoint| json!({ "name": one.name, "kind": one.kind });
        json!({
            "holds": self.holds(),
            "disturbance": self.disturbance,
            "missing": self.missing.iter().map(missing).collect::<Vec<_>>(),
            "endpoints": self.endpoints.iter().map(endpoint).collect::<Vec<_>>(),
            "probes": self.outcomes.iter().map(outcome).collect::<Vec<_>>(),
        })
    }
}

/// Addresses, each with the protocols of its probes.
type ProbedAddresses = Vec<(IpAddr, String)>;

/// For each pair: the reasons, each with the addresses and protocols that it is about.
fn group_by_pair<'a>(
    outcomes: impl Iterator<Item = (&'a Outcome, Option<&'a String>)>,
) -> Vec<((usize, usize), String)> {
    let mut pairs: BTreeMap<(usize, usize), Vec<(&str, ProbedAddresses)>> = BTreeMap::new();
    for (outcome, reason) in outcomes {
        let reason = reason.map_or("", String::as_str);
        let reasons = pairs.entry((outcome.from, outcome.to)).or_default();
        let at = reasons.iter().position(|(one, _)| *one == reason).unwrap_or_else(|| {
            reasons.push((reason, Vec::new()));
            reasons.len() - 1
        });
        let addresses = &mut reasons[at].1;
        match addresses.last_mut().filter(|(address, _)| *address == outcome.address) {
            Some((_, protocols)) => *protocols += &format!(" {}", outcome.protocol),
            None => addresses.push((outcome.address, outcome.protocol.to_string())),
        }
    }
    let text = |(reason, addresses): (&str, ProbedAddresses)| {
        let all: Vec<String> =
            addresses.into_iter().map(|(address, protocols)| format!("{address} {protocols}")).collect();
        format!("{reason} ({})", all.join(", "))
    };
    let line = |reasons: Vec<_>| reasons.into_iter().map(text).collect::<Vec<_>>().join("; ");
    pairs.into_iter().map(|(pair, reasons)| (pair, line(reasons))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `one` sends to 10.7.0.3 and fd07::3 of `two`; the results in order: TCP and UDP to each.
    fn report(results: [Result<Duration, String>; 4]) -> Report {
        let addresses = ["10.7.0.3", "fd07::3"].map(|ip| ip.parse().unwrap());
        let probes = addresses.iter().flat_map(|ip| [(*ip, Protocol::Tcp), (*ip, Protocol::Udp)]);
        let outcome = |((address, protocol), result): (_, Result<_, _>)| {
            let (from, to, port, answered) = (0, 1, Some(7), result.is_ok());
            Outcome { from, to, source: None, address, protocol, port, result, answered, denied: None }
        };
        let endpoint = |name: &str| ReportedEndpoint { name: name.into(), kind: Kind::Pod };
        Report {
            endpoints: vec![endpoint("one"), endpoint("two")],
            outcomes: probes.zip(results).map(outcome).collect(),
            missing: Vec::new(),
            disturbance: None,
        }
    }

    fn arrived() -> Result<Duration, String> {
        Ok(Duration::from_millis(1))
    }

    fn lost() -> Result<Duration, String> {
        Err("no answer".into())
    }

    #[test]
    fn failures_of_a_pair_are_one_line() {
        let all = report([lost(), lost(), Err("refused".into()), lost()]);
        assert_eq!(
            all.failures_by_pair(),
            ["one to two: no answer (10.7.0.3 tcp udp, fd07::3 udp); refused (fd07::3 tcp)"]
        );
    }

    #[test]
    fn what_is_denied_is_no_failure() {
        let mut all = report([lost(), arrived(), arrived(), arrived()]);
        assert!(!all.holds());
        all.outcomes[0].denied = Some("db".into());
        assert!(all.holds() && all.failures().next().is_none());
        assert_eq!(all.denials_by_pair(), ["one to two: db (10.7.0.3 tcp)"]);
        assert_eq!(all.rules()[0].count, Count { sent: 4, passed: 3, denied: 1 });
        assert!(
            all.to_json()["probes"][0]["failure"].is_null() && all.to_json()["probes"][0]["denied"] == "db"
        );
    }

    #[test]
    fn the_model_does_not_hold_if_something_is_missing() {
        let mut all = report([arrived(), arrived(), arrived(), arrived()]);
        assert!(all.holds());
        all.missing.push(Missing::new("three", Kind::Pod, "its namespace is gone"));
        assert!(!all.holds());
        assert_eq!(all.missing[0].to_string(), "pod three: its namespace is gone");
        assert_eq!(all.to_json()["missing"][0]["name"], "three");
    }
}
