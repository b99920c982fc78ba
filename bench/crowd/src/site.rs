//! A lab without pods, with access to its nodes and its store.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use podwire_kernel::Netns;
use serde_json::Value;

use crate::laboratory::Laboratory;
use crate::worker::{has, Done, Job, Worker};

/// The addresses of the lab's etcd and of a node's agent.
const ETCD: &str = "192.168.10.1:2379";
const AGENT: &str = "127.0.0.1:8081";
const LIST: &str = "/etc/cni/net.d/10-calico.conflist";
/// The timeout of waiting until the store has every pod.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The interval of polling.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The store of blocks: etcd, if it is installed.
pub fn store() -> &'static str {
    let path = std::env::var("PATH").unwrap_or_default();
    if path.split(':').any(|folder| has(folder, "etcd")) {
        "etcd"
    } else {
        "embedded"
    }
}

pub struct Site {
    lab: Laboratory,
    has_etcd: bool,
    /// The network namespaces of the nodes, in their order.
    netns: Vec<Netns>,
}

impl Site {
    pub fn new(nodes: usize, store: &str) -> Result<Site> {
        let flags = ["--pods", "0", "--family", "ipv4", "--cni-network", "calico", "--store", store];
        let lab = Laboratory::up(&[&flags[..], &["--nodes", &nodes.to_string()]].concat());
        let status = lab.status();
        let open = |node: &Value| Netns::open(format!("/proc/{}/ns/net", node["process"]));
        let netns = status["nodes"].as_array().into_iter().flatten().map(open).collect::<Result<_, _>>()?;
        Ok(Site { lab, has_etcd: store == "etcd", netns })
    }

    /// The numbers of the nodes.
    pub fn nodes(&self) -> RangeInclusive<usize> {
        1..=self.netns.len()
    }

    /// The conflist that the lab wrote.
    pub fn list(&self, node: &str) -> Result<Value> {
        Ok(serde_json::from_str(&self.lab.sh(node, &format!("cat {LIST}")))?)
    }

    /// The workers that attach pods, waiting for the start.
    pub fn workers(&self, jobs: &[Job]) -> Result<Vec<Worker>> {
        jobs.iter().map(|job| Worker::start(&self.lab.name, job)).collect()
    }

    /// The number of requests that etcd has answered, if the store is etcd. Watches do not count.
    pub fn requests(&self) -> Result<Option<f64>> {
        if !self.has_etcd {
            return Ok(None);
        }
        let text = get(&self.netns[0], ETCD, "/metrics")?;
        let lines = text.lines().filter(|line| line.starts_with("grpc_server_handled_total{"));
        let unary = lines.filter(|line| line.contains("grpc_type=\"unary\""));
        let count = |line: &str| line.rsplit(' ').next().and_then(|word| word.parse::<f64>().ok());
        Ok(Some(unary.filter_map(count).sum()))
    }

    /// Waits until the store has every pod.
    pub fn wait_until_synced(&self) -> Result<()> {
        let end = Instant::now() + TIMEOUT;
        for netns in &self.netns {
            loop {
                let status: Value = serde_json::from_str(&get(netns, AGENT, "/status")?)?;
                if status["addresses"]["unsynced"] == 0 {
                    break;
                }
                ensure!(Instant::now() < end, "not synced within {TIMEOUT:?}: {status:#}");
                std::thread::sleep(POLL_INTERVAL);
            }
        }
        Ok(())
    }

    /// Checks that each pod has a unique address, and that the first pod reaches the last pod: that of the last node if
    /// there are routes, else of its own node.
    pub fn check(&self, done: &[Done], has_routes: bool) -> Result<()> {
        let all: Vec<&String> = done.iter().flat_map(|node| &node.addresses).collect();
        let unique: BTreeSet<&String> = all.iter().copied().collect();
        ensure!(unique.len() == all.len(), "{} pods have {} addresses", all.len(), unique.len());
        let node = if has_routes { done.last() } else { done.first() };
        let last = node.and_then(|node| node.addresses.last()).context("no pods")?;
        self.lab.sh("n1", &format!("nsenter --net={} ping -c 1 -W 5 {last}", crate::worker::namespace(0)));
        Ok(())
    }
}

/// The body of an HTTP GET from a node.
fn get(netns: &Netns, address: &str, path: &str) -> Result<String> {
    let request = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(address)?;
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
        let mut response = String::new();
        stream.read_to_string(&mut response)?;
        Ok(response)
    };
    let response = netns.run(request)??;
    let (_, body) = response.split_once("\r\n\r\n").context("no HTTP response")?;
    Ok(body.to_owned())
}
