//! The nodes' agents: started, asked how they are, waited for.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use netlink::sys;
use serde_json::Value;

use crate::machine::SHARED;
use crate::{policies, Error, Lab, Result, Store};

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
}

impl Lab {
    /// Starts a node's agent.
    pub(crate) fn start_agent(&mut self, node: &str) -> Result<()> {
        let plan = &self.state.plan;
        let store = match plan.store {
            Store::Embedded => format!("embedded:{SHARED}/cluster.db"),
            Store::Static => format!("list:{SHARED}/nodes.json"),
            Store::Etcd => "etcd".into(),
        };
        let (conf, port) = (format!("{SHARED}/net-conf.json"), PORT.to_string());
        let mut words = vec!["agent", "--store", &store, "--node-name", node, "--net-config-path", &conf];
        let etcd = plan.etcd();
        if plan.store == Store::Etcd {
            words.extend(["--etcd-endpoints", &etcd]);
        }
        words.extend(["--ip-masq", "--cni-network", &plan.cni_network, "--healthz-port", &port]);
        let policies = policies::source();
        if plan.policies.is_some() {
            words.extend(["--policy", &policies]);
        }
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
        let flaw = |node: &String| match self.word(node) {
            None => Some(format!("{node}: its agent does not answer ({})", self.home.last_words(node))),
            Some(word) => word.flaw(nodes.len() - 1).map(|why| format!("{node}: {why}")),
        };
        nodes.iter().find_map(flaw)
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

impl Word {
    fn read(value: &Value) -> Word {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let texts =
            |key: &str| value[key].as_array().into_iter().flatten().map(text).collect::<Vec<String>>();
        let not_enforced = value["policies"]["problem"].as_str().map(|why| format!("policies: {why}"));
        let pair = |value: &Value| (text(&value[0]), text(&value[1]));
        Word {
            phase: text(&value["phase"]),
            peers: value["peers"].as_u64().unwrap_or_default() as usize,
            ranges: texts("ranges"),
            uplinks: texts("uplinks"),
            source: text(&value["source"]),
            refused: value["refused"].as_array().into_iter().flatten().map(pair).collect(),
            problems: texts("problems").into_iter().chain(not_enforced).collect(),
            policies_as_of: text(&value["policies"]["asOf"]),
        }
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
}
