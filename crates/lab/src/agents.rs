//! The nodes' agents: started, asked how they are, waited for.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use netlink::sys;
use serde_json::Value;

use crate::machine::SHARED;
use crate::{policies, Error, Lab, Plan, Result, Store};

/// Where an agent tells how it is.
const PORT: u16 = 8081;
const SECOND: Duration = Duration::from_secs(1);
/// Nobody says when all agents know of each other: they are asked this often. An agent that ends is noticed at once.
const GLANCE: Duration = Duration::from_millis(40);

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

impl Lab {
    /// Starts a node's agent.
    pub(crate) fn start_agent(&mut self, node: &str) -> Result<()> {
        let plan = &self.state.plan;
        let mut words = match plan.is_routed() {
            true => plan.node_words(node),
            false => plan.agent_words(node),
        };
        words.extend(["--healthz-port".into(), PORT.to_string()]);
        if plan.policies.is_some() {
            words.extend(["--policy".into(), policies::source()]);
        }
        if plan.is_routed() {
            // The other agent writes it itself.
            self.write_network(node)?;
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let agent = self.start(node, node, &self.own_words(node, &words))?;
        self.state.agents.insert(node.into(), agent);
        self.save()
    }

    /// What a node's agent says of itself; none if it does not answer.
    pub(crate) fn word(&self, node: &str) -> Option<Word> {
        let text = self.netns(node).ok()?.run(ask).ok()?.ok()?;
        let (_, body) = text.split_once("\r\n\r\n")?;
        Some(Word::read(&serde_json::from_str(body).ok()?))
    }

    /// What keeps the lab from being whole: every agent is ready, knows of all the others, and has nothing to complain about.
    pub(crate) fn flaw(&self) -> Option<String> {
        let nodes = self.nodes();
        let mut words = Vec::new();
        for node in &nodes {
            let Some(word) = self.word(node) else {
                return Some(format!("{node}: its agent does not answer ({})", self.home.last_words(node)));
            };
            if let Some(why) = word.flaw(nodes.len() - 1) {
                return Some(format!("{node}: {why}"));
            }
            words.push(word);
        }
        let without_roads = words.iter().position(|word| word.lacks_roads(&words));
        without_roads.map(|at| format!("{}: it does not know all blocks of the others", nodes[at]))
    }

    /// Waits until nothing of `flaw` is left; returns how long that took.
    pub(crate) fn wait_until_none(
        &self,
        patience: Duration,
        flaw: impl Fn(&Lab) -> Option<String>,
    ) -> Result<Duration> {
        let start = Instant::now();
        let open = |process: &sandbox::Process| process.open().ok().flatten();
        let agents: Vec<OwnedFd> = self.state.agents.values().filter_map(open).collect();
        loop {
            let Some(why) = flaw(self) else { return Ok(start.elapsed()) };
            if start.elapsed() > patience {
                return Err(Error::NotWhole { seconds: patience.as_secs(), why });
            }
            let fds: Vec<_> = agents.iter().map(AsFd::as_fd).collect();
            let ended = sys::readable(&fds, GLANCE).map_err(Error::file("wait for", "agents"))?;
            if ended.contains(&true) {
                let gone = self.state.agents.iter().find(|(_, agent)| !agent.is_alive());
                let said = |node: &String| format!("{node}: its agent ended: {}", self.home.last_words(node));
                let why = gone.map_or(why, |(node, _)| said(node));
                return Err(Error::NotWhole { seconds: start.elapsed().as_secs(), why });
            }
        }
    }
}

fn ask() -> std::io::Result<String> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
    let mut stream = TcpStream::connect_timeout(&address, SECOND)?;
    stream.set_read_timeout(Some(SECOND))?;
    stream.write_all(b"GET /status HTTP/1.0\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

impl Plan {
    /// `podwire agent`.
    fn agent_words(&self, node: &str) -> Vec<String> {
        let store = match self.store {
            Store::Embedded => format!("embedded:{SHARED}/cluster.db"),
            Store::Static => format!("list:{SHARED}/nodes.json"),
            Store::Etcd => "etcd".into(),
        };
        let (conf, etcd) = (format!("{SHARED}/net-conf.json"), self.etcd());
        let mut words = vec!["agent", "--store", &store, "--node-name", node, "--net-config-path", &conf];
        if self.store == Store::Etcd {
            words.extend(["--etcd-endpoints", &etcd]);
        }
        words.extend(["--ip-masq", "--cni-network", &self.cni_network]);
        words.into_iter().map(String::from).collect()
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().map(text).collect()
}

impl Word {
    /// Of `podwire agent`, or of `podwire node`.
    fn read(value: &Value) -> Word {
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
    }

    /// Whether it knows of fewer blocks of the others than they have.
    fn lacks_roads(&self, all: &[Word]) -> bool {
        let blocks = all.iter().map(|word| word.ranges.len()).sum::<usize>() - self.ranges.len();
        self.routes.is_some_and(|routes| routes < blocks)
    }

    fn flaw(&self, others: usize) -> Option<String> {
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
    }
}
