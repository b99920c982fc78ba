//! The agents of the nodes: start them, read their status, and wait until they are healthy.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use podwire_agent_ipc::status::{Phase, Status};
use podwire_fs::FileError;
use podwire_netlink::sys;

use crate::machine::SHARED;
use crate::{policies, services, Error, Lab, LabSpec, Result, Store};

/// The health port of the agents.
const PORT: u16 = 8081;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Generous: an agent on a busy machine answers late.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval of status requests: an agent does not notify changes of its status. The end of an agent is noticed at once.
const POLL_INTERVAL: Duration = Duration::from_millis(40);

impl Lab {
    /// Starts the agent of a node.
    pub(crate) fn start_agent(&mut self, node: &str) -> Result<()> {
        let spec = &self.state.spec;
        let mut words = if spec.is_calico() { spec.calico_agent(node) } else { spec.flannel_agent(node) };
        words.extend(["--healthz-port".into(), PORT.to_string()]);
        if spec.policies.is_some() {
            words.extend(["--policy".into(), policies::source()]);
        }
        if spec.services.is_some() {
            words.extend(["--services".into(), services::source()]);
        }
        if spec.is_calico() {
            // The flannel agent writes its conflist itself.
            self.write_conflist(node)?;
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let agent = self.start(node, node, &self.own_command(node, &words))?;
        self.state.agents.insert(node.into(), agent);
        self.save()
    }

    /// The status of a node's agent; `None` if it does not answer.
    pub(crate) fn agent_status(&self, node: &str) -> Option<Status> {
        let text = self.netns(node).ok()?.run(get_status).ok()?.ok()?;
        let (_, body) = text.split_once("\r\n\r\n")?;
        serde_json::from_str(body).ok()
    }

    /// The first problem of the lab; `None` if every agent is ready, knows all others and reports no problem.
    pub(crate) fn first_problem(&self) -> Option<String> {
        let nodes = self.nodes();
        let mut all = Vec::new();
        for node in &nodes {
            let Some(status) = self.agent_status(node) else {
                return Some(format!(
                    "{node}: the agent does not answer ({})",
                    self.directory.log_tail(node)
                ));
            };
            if let Some(why) = agent_problem(&status, nodes.len() - 1) {
                return Some(format!("{node}: {why}"));
            }
            all.push(status);
        }
        let lacking = all.iter().position(|status| lacks_routes(status, &all));
        let lacking =
            lacking.map(|at| format!("{}: the agent does not know all blocks of the other nodes", nodes[at]));
        lacking.or_else(|| self.services_problem())
    }

    /// Waits until the agents know the block of every pod address and have routes to it. Agents learn of a new block from
    /// the store, after its first pods have started.
    pub(crate) fn wait_for_blocks(&self, timeout: Duration) -> Result<Duration> {
        let mut ips = Vec::new();
        for (_, pods) in self.list_pods() {
            ips.extend(pods?.into_iter().flat_map(|pod| pod.status.ips));
        }
        self.wait_until_none(timeout, |lab| lab.unknown_block(&ips).or_else(|| lab.first_problem()))
    }

    fn unknown_block(&self, ips: &[IpAddr]) -> Option<String> {
        let all: Vec<Status> = self.nodes().iter().filter_map(|node| self.agent_status(node)).collect();
        let unknown = ips.iter().find(|ip| !all.iter().any(|status| has_address(status, **ip)))?;
        Some(format!("no agent knows the block of {unknown}"))
    }

    /// Waits until `problem` returns none. Returns the time that it took.
    pub(crate) fn wait_until_none(
        &self,
        timeout: Duration,
        problem: impl Fn(&Lab) -> Option<String>,
    ) -> Result<Duration> {
        let start = Instant::now();
        let open = |process: &podwire_sandbox::Process| process.open().ok().flatten();
        let agents: Vec<OwnedFd> = self.state.agents.values().filter_map(open).collect();
        loop {
            let Some(why) = problem(self) else { return Ok(start.elapsed()) };
            if start.elapsed() > timeout {
                return Err(Error::NotHealthy { seconds: timeout.as_secs(), why });
            }
            let fds: Vec<_> = agents.iter().map(AsFd::as_fd).collect();
            let ended = sys::readable(&fds, POLL_INTERVAL).map_err(FileError::at("wait for", "agents"))?;
            if ended.contains(&true) {
                let gone = self.state.agents.iter().find(|(_, agent)| !agent.is_alive());
                let log =
                    |node: &String| format!("{node}: the agent ended: {}", self.directory.log_tail(node));
                let why = gone.map_or(why, |(node, _)| log(node));
                return Err(Error::NotHealthy { seconds: start.elapsed().as_secs(), why });
            }
        }
    }
}

fn get_status() -> std::io::Result<String> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
    let mut stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)?;
    stream.set_read_timeout(Some(READ_TIMEOUT))?;
    stream.write_all(b"GET /status HTTP/1.0\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// Whether the node can take pods: its routes are set up and, in calico mode, its warm pool has addresses.
pub(crate) fn is_ready(status: &Status) -> bool {
    status.phase == Phase::Ready && status.addresses.as_ref().is_none_or(|addresses| addresses.warm_pool > 0)
}

/// All problems that an agent reports, the store's last.
pub(crate) fn problems(status: &Status) -> Vec<String> {
    let mut problems = status.problems.clone();
    let mut add = |problem: String| {
        if !problems.contains(&problem) {
            problems.push(problem);
        }
    };
    if let Some(addresses) = &status.addresses {
        addresses.problem.iter().chain(&addresses.unreadable).cloned().for_each(&mut add);
        let conflicts = addresses.conflicting.iter();
        conflicts.map(|ip| format!("{ip} also has another owner in the store")).for_each(&mut add);
    }
    let policies = status.policies.iter().filter_map(|policies| policies.problem.as_ref());
    policies.map(|why| format!("policies: {why}")).for_each(&mut add);
    if !status.store.synced {
        add(status.store.detail.clone());
    }
    problems
}

/// The first problem of an agent that should know so many other nodes.
fn agent_problem(status: &Status, others: usize) -> Option<String> {
    let problems = problems(status);
    if !is_ready(status) {
        let phase = if status.phase == Phase::Broken { "broken" } else { "starting" };
        return Some(format!("the agent is {phase}: {}", problems.join("; ")));
    }
    let wrong_peers = || format!("the agent has routes to {} other nodes instead of {others}", status.peers);
    problems.into_iter().next().or_else(|| (status.peers != others).then(wrong_peers))
}

/// Whether an address belongs to a pod CIDR or block of the node.
fn has_address(status: &Status, ip: IpAddr) -> bool {
    status.pod_cidrs.iter().any(|cidr| cidr.parse().is_ok_and(|cidr: IpNet| cidr.contains(&ip)))
}

/// Whether an agent has routes to fewer blocks than the other nodes have.
fn lacks_routes(status: &Status, all: &[Status]) -> bool {
    let blocks = all.iter().map(|one| one.pod_cidrs.len()).sum::<usize>() - status.pod_cidrs.len();
    status.routes.is_some_and(|routes| routes < blocks)
}

impl LabSpec {
    /// The arguments of `podwire agent flannel`.
    fn flannel_agent(&self, node: &str) -> Vec<String> {
        let store = match self.store {
            Store::Embedded => format!("embedded:{SHARED}/cluster.db"),
            Store::Static => format!("list:{SHARED}/nodes.json"),
            Store::Etcd => "etcd".into(),
        };
        let (conf, etcd) = (format!("{SHARED}/net-conf.json"), self.etcd());
        let mut words = vec!["agent", "flannel", "--store", &store];
        words.extend(["--node-name", node, "--net-config-path", &conf]);
        if self.store == Store::Etcd {
            words.extend(["--etcd-endpoints", &etcd]);
        }
        words.extend(["--ip-masq", "--cni-network", &self.cni_network]);
        words.into_iter().map(String::from).collect()
    }
}

#[cfg(test)]
mod tests {
    use podwire_agent_ipc::status::{AddressStatus, Mode, StoreStatus};

    use super::*;

    fn healthy() -> Status {
        let store = StoreStatus { synced: true, detail: "current".into() };
        Status { phase: Phase::Ready, peers: 2, store, ..Status::default() }
    }

    #[test]
    fn an_agent_is_healthy_if_it_is_ready_and_knows_all_others() {
        let problem = |status: Status| agent_problem(&status, 2).unwrap_or_default();
        assert_eq!(problem(healthy()), "");
        let problems = vec!["no link".to_owned()];
        let broken = Status { phase: Phase::Broken, problems: problems.clone(), ..healthy() };
        assert!(problem(broken).contains("broken: no link"));
        assert!(problem(Status { problems, ..healthy() }).contains("no link"));
        let store = StoreStatus { synced: false, detail: "etcd is away".into() };
        assert!(problem(Status { store, ..healthy() }).contains("away"));
        assert!(problem(Status { peers: 1, ..healthy() }).contains("1 other nodes instead of 2"));
    }

    #[test]
    fn a_calico_agent_needs_a_warm_pool_and_routes_to_all_blocks() {
        let calico = |warm_pool: usize, routes: usize| Status {
            mode: Mode::Calico,
            routes: Some(routes),
            pod_cidrs: vec!["10.244.0.0/26".into()],
            addresses: Some(AddressStatus { warm_pool, ..AddressStatus::default() }),
            ..healthy()
        };
        assert_eq!(agent_problem(&calico(4, 1), 2), None);
        assert!(agent_problem(&calico(0, 1), 2).unwrap().contains("starting"));
        let all = [calico(4, 1), calico(4, 0)];
        assert_eq!(all.each_ref().map(|status| lacks_routes(status, &all)), [false, true]);
        assert!(has_address(&all[0], [10, 244, 0, 63].into()));
        assert!(!has_address(&all[0], [10, 244, 0, 64].into()));
    }
}
