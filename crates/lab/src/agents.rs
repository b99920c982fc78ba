//! The nodes' agents: started, asked how they are, waited for.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use podwire_netlink::sys;

use crate::machine::SHARED;
use crate::word::Word;
use crate::{policies, Error, Lab, Plan, Result, Store};

/// Where an agent tells how it is.
const PORT: u16 = 8081;
const CONNECTED: Duration = Duration::from_secs(1);
/// An agent on a busy machine answers late.
const ANSWERED: Duration = Duration::from_secs(10);
/// Nobody says when all agents know of each other: they are asked this often. An agent that ends is noticed at once.
const GLANCE: Duration = Duration::from_millis(40);

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

    /// Waits until the agents know of every block that a pod has an address of, and of the roads there. They hear of a block from the
    /// store: its first pods may be there before, and until then none of them misses a road.
    pub(crate) fn wait_for_blocks(&self, patience: Duration) -> Result<Duration> {
        let mut ips = Vec::new();
        for (_, pods) in self.list_pods() {
            ips.extend(pods?.into_iter().flat_map(|pod| pod.status.ips));
        }
        self.wait_until_none(patience, |lab| lab.without_block(&ips).or_else(|| lab.flaw()))
    }

    fn without_block(&self, ips: &[IpAddr]) -> Option<String> {
        let words: Vec<Word> = self.nodes().iter().filter_map(|node| self.word(node)).collect();
        let unknown = ips.iter().find(|ip| !words.iter().any(|word| word.has(**ip)))?;
        Some(format!("no agent knows of the block that {unknown} is of"))
    }

    /// Waits until nothing of `flaw` is left; returns how long that took.
    pub(crate) fn wait_until_none(
        &self,
        patience: Duration,
        flaw: impl Fn(&Lab) -> Option<String>,
    ) -> Result<Duration> {
        let start = Instant::now();
        let open = |process: &podwire_sandbox::Process| process.open().ok().flatten();
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
    let mut stream = TcpStream::connect_timeout(&address, CONNECTED)?;
    stream.set_read_timeout(Some(ANSWERED))?;
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
