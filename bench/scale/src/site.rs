//! The machine of the agent, and what can be observed of the agent.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use podwire_kernel::{Host, Netns};
use podwire_netlink::rt::route;
use podwire_tests::{podwire, Node, Process};
use serde_json::Value;

use crate::source::Source;

/// The timeout of all waiting.
const TIMEOUT: Duration = Duration::from_secs(300);
/// The interval of polling.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The agent's machine. No other node is behind its link: the benchmark measures the agent and its kernel only.
pub struct Site {
    pub node: Node,
    netns: Netns,
    host: Host,
    agent: Option<Process>,
}

impl Site {
    pub fn new() -> Result<Site> {
        let node = Node::new();
        node.sh("ip link add eth0 type veth peer name far && ip link set far up && ip link set eth0 up \
                 && ip address add 172.16.0.1/12 dev eth0 && ip route add default via 172.16.0.2");
        let netns = Netns::open(format!("/proc/{}/ns/net", node.pid()))?;
        let host = netns.run(Host::here)??;
        Ok(Site { node, netns, host, agent: None })
    }

    /// Starts the agent. Returns when it has routes to this number of nodes, with the time since its start.
    pub fn start_agent(&mut self, source: &dyn Source, peers: usize) -> Result<Duration> {
        let mut command = self.node.command(&podwire());
        command.args(["agent", "flannel", "--node-name", "own", "--ip-masq", "--healthz-port", "8081"]);
        command.args(["--cni-network", "bridge", "--cni-conflist", "/run/cni-conf/10-podwire.conflist"]);
        // With a log line for each route, the time would include the reader of the log.
        command.args(source.flags()).env("RUST_LOG", "warn");
        let start = Instant::now();
        self.agent = Some(Process::start(command));
        self.wait_for(&format!("{peers} peers"), |site| {
            site.status().is_some_and(|status| status["phase"] == "ready" && status["peers"] == peers)
        })?;
        Ok(start.elapsed())
    }

    /// Waits until packets to this address use a route of the agent.
    pub fn wait_for_route(&mut self, to: IpAddr) -> Result<()> {
        let device = self.host.find_link("flannel.1")?.context("no link flannel.1")?.index;
        self.wait_for(&format!("the route to {to}"), |site| {
            route::get(&mut site.host.route, to).is_ok_and(|route| route.link == Some(device))
        })
    }

    fn wait_for(&mut self, what: &str, is_reached: impl Fn(&mut Site) -> bool) -> Result<()> {
        let end = Instant::now() + TIMEOUT;
        while !is_reached(self) {
            ensure!(Instant::now() < end, "not within {TIMEOUT:?}: {what}; {:?}", self.status());
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// The agent's `/status`.
    fn status(&self) -> Option<Value> {
        let request = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect("127.0.0.1:8081")?;
            stream.write_all(b"GET /status HTTP/1.0\r\n\r\n")?;
            let mut response = String::new();
            stream.read_to_string(&mut response)?;
            Ok(response)
        };
        let response = self.netns.run(request).ok()?.ok()?;
        serde_json::from_str(response.split_once("\r\n\r\n")?.1).ok()
    }

    fn proc(&self, file: &str) -> Result<String> {
        let pid = self.agent.as_ref().context("no agent runs")?.id();
        Ok(fs::read_to_string(format!("/proc/{pid}/{file}"))?)
    }

    /// The agent's memory now and its peak, in MB (of 2^20 bytes).
    pub fn memory(&self) -> Result<(f64, f64)> {
        let text = self.proc("status")?;
        let field = |name: &str| -> Option<f64> {
            let line = text.lines().find(|line| line.starts_with(name))?;
            line.split_whitespace().nth(1)?.parse::<f64>().ok().map(|kib| kib / 1024.0)
        };
        field("VmRSS").zip(field("VmHWM")).context("no memory in /proc")
    }

    /// The agent's share of a core while nothing happens, in percent.
    pub fn idle_cpu(&self, during: Duration) -> Result<f64> {
        // schedstat counts nanoseconds; the clock ticks of `stat` are too coarse.
        let run_time = || -> Result<f64> {
            let pid = self.agent.as_ref().context("no agent runs")?.id();
            let mut sum = 0.0;
            for task in fs::read_dir(format!("/proc/{pid}/task"))? {
                let text = fs::read_to_string(task?.path().join("schedstat"))?;
                sum += text.split(' ').next().and_then(|word| word.parse::<f64>().ok()).unwrap_or(0.0);
            }
            Ok(sum)
        };
        let before = run_time()?;
        let start = Instant::now();
        std::thread::sleep(during);
        Ok(100.0 * (run_time()? - before) / start.elapsed().as_nanos() as f64)
    }

    /// The numbers of the agent's routes, neighbours and forwarding entries.
    pub fn objects(&self) -> Result<[usize; 3]> {
        let count = |script: &str| -> Result<usize> { Ok(self.node.sh(script).trim().parse()?) };
        Ok([
            count("ip route show proto 112 | wc -l")?,
            count("ip neigh show dev flannel.1 nud permanent | wc -l")?,
            count("bridge fdb show dev flannel.1 | grep -c dst || true")?,
        ])
    }
}
