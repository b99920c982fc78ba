//! What an agent says of itself, `podwire agent` or `podwire node`.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

/// What is needed of an agent's status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Word {
    pub phase: String,
    pub peers: usize,
    pub ranges: Vec<String>,
    pub uplinks: Vec<String>,
    pub source: String,
    pub refused: Vec<(String, String)>,
    pub problems: Vec<String>,
    /// When the newest change of policies was made that it enforces; empty if there are none.
    pub policies_as_of: String,
    /// To how many blocks of other nodes there are roads, where pods are routed.
    pub routes: Option<usize>,
}

impl Word {
    /// Of `podwire agent`, or of `podwire node`.
    pub(crate) fn read(value: &Value) -> Word {
        let roads = if value["roads"].is_object() { &value["roads"] } else { value };
        let pair = |value: &Value| (text(&value[0]), text(&value[1]));
        let count = |key: &str| roads[key].as_u64().map(|count| count as usize);
        let mut word = Word {
            phase: text(&value["phase"]),
            peers: count("peers").unwrap_or_default(),
            ranges: texts(&value["ranges"]),
            uplinks: texts(&roads["uplinks"]),
            source: text(&value["source"]),
            refused: roads["refused"].as_array().into_iter().flatten().map(pair).collect(),
            problems: texts(&value["problems"]),
            policies_as_of: text(&value["policies"]["asOf"]),
            routes: count("routes"),
        };
        if value["roads"].is_object() {
            word.read_routed(roads, &value["addresses"]);
        }
        let not_enforced = value["policies"]["problem"].as_str().map(|why| format!("policies: {why}"));
        word.problems.extend(not_enforced);
        word
    }

    /// What `podwire node` says otherwise.
    fn read_routed(&mut self, roads: &Value, addresses: &Value) {
        let is_ready = roads["ready"] == true && addresses["stock"].as_u64() > Some(0);
        self.phase = if is_ready { "ready" } else { "starting" }.into();
        self.ranges = texts(&roads["blocks"]);
        self.source = "current".into();
        for (whose, what) in roads["problems"].as_object().into_iter().flatten() {
            match whose.as_str() {
                "the store" => self.source = text(what),
                _ => self.problems.push(format!("{whose}: {}", text(what))),
            }
        }
        self.problems.extend(addresses["trouble"].as_str().map(String::from));
        self.problems.extend(texts(&addresses["unreadable"]));
        self.problems.extend(
            texts(&addresses["lost"]).into_iter().map(|lost| format!("{lost} is somebody else's too")),
        );
    }

    /// Whether an address is of a range of this node.
    pub(crate) fn has(&self, ip: IpAddr) -> bool {
        self.ranges.iter().any(|range| range.parse().is_ok_and(|range: IpNet| range.contains(&ip)))
    }

    /// Whether it knows of fewer blocks of the others than they have.
    pub(crate) fn lacks_roads(&self, all: &[Word]) -> bool {
        let blocks = all.iter().map(|word| word.ranges.len()).sum::<usize>() - self.ranges.len();
        self.routes.is_some_and(|routes| routes < blocks)
    }

    pub(crate) fn flaw(&self, others: usize) -> Option<String> {
        if self.phase != "ready" {
            return Some(format!("its agent is {}: {}", self.phase, self.problems.join("; ")));
        }
        if let Some(problem) = self.problems.first() {
            return Some(problem.clone());
        }
        if self.source != "current" {
            return Some(self.source.clone());
        }
        (self.peers != others).then(|| format!("it knows {} other nodes instead of {others}", self.peers))
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().map(text).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_agent_is_whole_when_it_knows_all_others_and_complains_of_nothing() {
        let say = |phase: &str, peers: u32, problems: &[&str], source: &str| {
            Word::read(&json!({"phase": phase, "peers": peers, "problems": problems, "source": source}))
        };
        assert_eq!(say("ready", 2, &[], "current").flaw(2), None);
        assert!(say("broken", 2, &["no link"], "current").flaw(2).unwrap().contains("broken: no link"));
        assert!(say("ready", 2, &["a rival"], "current").flaw(2).unwrap().contains("a rival"));
        assert!(say("ready", 2, &[], "etcd is away").flaw(2).unwrap().contains("away"));
        assert!(say("ready", 1, &[], "current").flaw(2).unwrap().contains("1 other nodes instead of 2"));
    }

    #[test]
    fn where_pods_are_routed_it_must_know_all_blocks() {
        let say = |stock: u32, routes: u32, problems: Value| {
            let roads = json!({"ready": true, "peers": 1, "routes": routes, "blocks": ["10.244.0.0/26"], "problems": problems});
            Word::read(&json!({"roads": roads, "addresses": {"stock": stock, "trouble": null}}))
        };
        assert_eq!(say(4, 1, json!({})).flaw(1), None);
        assert!(say(0, 1, json!({})).flaw(1).unwrap().contains("starting"));
        assert!(say(4, 1, json!({"the store": "etcd is away"})).flaw(1).unwrap().contains("away"));
        assert!(say(4, 1, json!({"roads": "no link"})).flaw(1).unwrap().contains("no link"));
        let all = [say(4, 1, json!({})), say(4, 0, json!({}))];
        assert_eq!(all.each_ref().map(|word| word.lacks_roads(&all)), [false, true]);
        assert!(all[0].has([10, 244, 0, 63].into()) && !all[0].has([10, 244, 0, 64].into()));
    }
}
