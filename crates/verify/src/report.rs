//! The result of a verification: every probe with its outcome, and summaries.

use std::collections::HashMap;
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
    /// The receiver's address.
    pub address: IpAddr,
    /// The kind of packet.
    pub protocol: Protocol,
    /// The round-trip time, or why the probe failed.
    pub result: Result<Duration, String>,
}

/// The outcomes of all probes.
#[derive(Clone, Debug)]
pub struct Report {
    /// The endpoints, in the order in which they were passed.
    pub endpoints: Vec<ReportedEndpoint>,
    /// All probes.
    pub outcomes: Vec<Outcome>,
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

impl Report {
    /// The probes that failed.
    pub fn failures(&self) -> impl Iterator<Item = &Outcome> {
        self.outcomes.iter().filter(|outcome| outcome.result.is_err())
    }

    /// Whether there was at least one probe and none failed.
    pub fn holds(&self) -> bool {
        !self.outcomes.is_empty() && self.failures().next().is_none()
    }

    /// For each pair (from, to): the number of successful probes and of all probes.
    pub fn matrix(&self) -> HashMap<(usize, usize), (usize, usize)> {
        let mut cells = HashMap::new();
        for outcome in &self.outcomes {
            let (good, all) = cells.entry((outcome.from, outcome.to)).or_insert((0, 0));
            *all += 1;
            *good += usize::from(outcome.result.is_ok());
        }
        cells
    }

    /// The three rules of the network model, each with the number of successful probes and of all probes.
    pub fn rules(&self) -> [(&'static str, usize, usize); 3] {
        let count = |asks: &dyn Fn(&Outcome) -> bool| {
            let asked = self.outcomes.iter().filter(|one| asks(one));
            asked.fold((0, 0), |(good, all), one| (good + usize::from(one.result.is_ok()), all + 1))
        };
        let between = |one: &Outcome, from: Kind| {
            self.endpoints[one.from].kind == from && self.endpoints[one.to].kind == Kind::Pod
        };
        let pods = count(&|one| between(one, Kind::Pod));
        let nodes = count(&|one| between(one, Kind::Node));
        // An ICMP echo reply does not contain the source address that the receiver saw.
        let seen = count(&|one| between(one, Kind::Pod) && one.protocol != Protocol::Icmp);
        [
            ("every pod reaches every pod", pods.0, pods.1),
            ("every node reaches every pod", nodes.0, nodes.1),
            ("a pod is seen with its own address", seen.0, seen.1),
        ]
    }

    /// One failure as text.
    pub fn sentence(&self, outcome: &Outcome) -> String {
        let name = |at: usize| self.endpoints.get(at).map_or("?", |one| &one.name);
        let Outcome { from, to, address, protocol, .. } = outcome;
        let reason = outcome.result.as_ref().err().map_or("", |reason| reason);
        format!("{} to {} ({address}, {protocol}): {reason}", name(*from), name(*to))
    }

    /// The report as JSON.
    pub fn to_json(&self) -> Value {
        let name = |at: usize| self.endpoints.get(at).map(|one| one.name.as_str());
        let outcome = |one: &Outcome| {
            json!({
                "from": name(one.from),
                "to": name(one.to),
                "address": one.address,
                "protocol": one.protocol.to_string(),
                "microseconds": one.result.as_ref().ok().map(|time| time.as_micros() as u64),
                "failure": one.result.as_ref().err(),
            })
        };
        let endpoint = |one: &ReportedEndpoint| json!({ "name": one.name, "kind": one.kind });
        json!({
            "holds": self.holds(),
            "disturbance": self.disturbance,
            "endpoints": self.endpoints.iter().map(endpoint).collect::<Vec<_>>(),
            "probes": self.outcomes.iter().map(outcome).collect::<Vec<_>>(),
        })
    }
}
