//! The matrix: who reached whom, how, and what stood in the way.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use serde_json::{json, Value};

use crate::{Kind, Protocol};

/// One question and what came of it.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Who asked: a number in [`Report::places`].
    pub from: usize,
    /// Who was asked.
    pub to: usize,
    /// At which address.
    pub address: IpAddr,
    /// By what.
    pub protocol: Protocol,
    /// How long the answer took, or why there is none.
    pub result: Result<Duration, String>,
}

/// What everybody learned.
#[derive(Clone, Debug)]
pub struct Report {
    /// The places, as they were given.
    pub places: Vec<(String, Kind)>,
    /// All questions.
    pub outcomes: Vec<Outcome>,
    /// What else happened on the machine meanwhile, by which questions may have failed, and what helps.
    pub disturbance: Option<String>,
}

impl Report {
    /// The questions that were not answered as the model wants it.
    pub fn failures(&self) -> impl Iterator<Item = &Outcome> {
        self.outcomes.iter().filter(|outcome| outcome.result.is_err())
    }

    /// Whether there was anything to ask, and all of it was answered well.
    pub fn holds(&self) -> bool {
        !self.outcomes.is_empty() && self.failures().next().is_none()
    }

    /// The matrix: for each pair of which one asked the other, how many answers out of how many questions.
    pub fn matrix(&self) -> HashMap<(usize, usize), (usize, usize)> {
        let mut cells = HashMap::new();
        for outcome in &self.outcomes {
            let (good, all) = cells.entry((outcome.from, outcome.to)).or_insert((0, 0));
            *all += 1;
            *good += usize::from(outcome.result.is_ok());
        }
        cells
    }

    /// The three rules of the model: what each asks for, and how many answers out of how many questions were so.
    pub fn rules(&self) -> [(&'static str, usize, usize); 3] {
        let count = |asks: &dyn Fn(&Outcome) -> bool| {
            let asked = self.outcomes.iter().filter(|one| asks(one));
            asked.fold((0, 0), |(good, all), one| (good + usize::from(one.result.is_ok()), all + 1))
        };
        let between =
            |one: &Outcome, from: Kind| self.places[one.from].1 == from && self.places[one.to].1 == Kind::Pod;
        let pods = count(&|one| between(one, Kind::Pod));
        let nodes = count(&|one| between(one, Kind::Node));
        // An echo does not tell as whom its sender was seen.
        let seen = count(&|one| between(one, Kind::Pod) && one.protocol != Protocol::Icmp);
        [
            ("every pod reaches every pod", pods.0, pods.1),
            ("every node reaches every pod", nodes.0, nodes.1),
            ("a pod is seen with its own address", seen.0, seen.1),
        ]
    }

    /// One failure as a sentence.
    pub fn sentence(&self, outcome: &Outcome) -> String {
        let name = |place: usize| self.places.get(place).map_or("?", |(name, _)| name);
        let Outcome { from, to, address, protocol, .. } = outcome;
        let why = outcome.result.as_ref().err().map_or("", |why| why);
        format!("{} to {} ({address}, {protocol}): {why}", name(*from), name(*to))
    }

    /// For programs.
    pub fn to_json(&self) -> Value {
        let name = |place: usize| self.places.get(place).map(|(name, _)| name.as_str());
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
        let place = |(name, kind): &(String, Kind)| json!({ "name": name, "kind": if *kind == Kind::Pod { "pod" } else { "node" } });
        json!({
            "holds": self.holds(),
            "disturbance": self.disturbance,
            "places": self.places.iter().map(place).collect::<Vec<_>>(),
            "probes": self.outcomes.iter().map(outcome).collect::<Vec<_>>(),
        })
    }
}
