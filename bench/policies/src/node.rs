//! A node in namespaces of its own: two pods that talk across it, and a policy_agent that is told of hundreds more.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use podwire_kernel::Netns;
use podwire_policy_agent::{PolicyAgent, PolicyAgentOptions, PolicyStatus, Update};

use crate::cluster::{address, Cluster, CLIENT, HERE, SERVER, SERVICE};

/// No update takes so long.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks.
const PAUSE: Duration = Duration::from_micros(50);
/// After its own change a policy_agent looks once whether all is well; that is no part of the next update.
const REST: Duration = Duration::from_millis(15);

pub struct Node {
    pub cluster: Cluster,
    client: Netns,
    policy_agent: PolicyAgent,
    service: SocketAddr,
    talk: TcpStream,
}

impl Node {
    pub fn new(cluster: Cluster) -> Result<Node> {
        let folder = format!("/run/bench/{}-{}", cluster.policies, cluster.pods);
        let host = Netns::create(format!("{folder}/node"))?;
        host.run(|| shell("ip link set lo up && sysctl -qw net.ipv4.ip_forward=1"))??;
        let server = wire(&host, &folder, SERVER)?;
        let client = wire(&host, &folder, CLIENT)?;
        // The memory of connections that are over is short: rounds shall not weigh on each other.
        host.run(|| shell("sysctl -qw net.netfilter.nf_conntrack_tcp_timeout_time_wait=1"))??;
        let policy_agent = host.run(|| {
            PolicyAgent::start(PolicyAgentOptions {
                node_name: HERE.into(),
                lists_pods: true,
                close_denied: false,
            })
        })??;
        policy_agent.set_networks(vec!["10.9.0.0/16".parse()?], Vec::new())?;
        cluster.all()?.into_iter().try_for_each(|told| policy_agent.update(told))?;
        let begun = Instant::now();
        while !policy_agent.status().enforced {
            patience(begun, &policy_agent.status())?;
        }
        server.run(serve)??;
        let service = SocketAddr::new(address(SERVER).parse()?, SERVICE);
        let talk = client.run(|| TcpStream::connect_timeout(&service, PATIENCE))?.context("the service")?;
        talk.set_nodelay(true)?;
        let closed = SocketAddr::new(service.ip(), SERVICE + 1);
        let answer = client.run(|| TcpStream::connect_timeout(&closed, Duration::from_millis(300)))?;
        let refused = answer.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused);
        ensure!(
            refused == (cluster.policies == 0),
            "{cluster:?}: policies are not enforced, or others than told"
        );
        Ok(Node { cluster, client, policy_agent, service, talk })
    }

    /// Connections, one after the other: the microseconds of one.
    pub fn connect(&self, times: u32) -> Result<f64> {
        let work = || -> std::io::Result<Duration> {
            let begun = Instant::now();
            for _ in 0..times {
                // The other side hangs up at once: that it did ends the turn of this one.
                let _ = TcpStream::connect(self.service)?.read(&mut [0])?;
            }
            Ok(begun.elapsed())
        };
        Ok(self.client.run(work)??.as_secs_f64() * 1e6 / f64::from(times))
    }

    /// A byte to the other side and back, again and again on one connection: the microseconds of one.
    pub fn ping_pong(&mut self, times: u32) -> Result<f64> {
        let begun = Instant::now();
        for _ in 0..times {
            self.talk.write_all(b"?")?;
            self.talk.read_exact(&mut [0])?;
        }
        Ok(begun.elapsed().as_secs_f64() * 1e6 / f64::from(times))
    }

    /// Milliseconds from the news to the kernel's acknowledgement.
    pub fn update(&self, told: Update) -> Result<f64> {
        std::thread::sleep(REST);
        let before = self.policy_agent.status().changes;
        let begun = Instant::now();
        self.policy_agent.update(told)?;
        loop {
            let state = self.policy_agent.status();
            if state.changes > before {
                return Ok(begun.elapsed().as_secs_f64() * 1e3);
            }
            patience(begun, &state)?;
        }
    }
}

fn patience(since: Instant, state: &PolicyStatus) -> Result<()> {
    ensure!(since.elapsed() < PATIENCE, "not within {PATIENCE:?}: {state:?}");
    std::thread::sleep(PAUSE);
    Ok(())
}

/// A pod with a cable and a route of its own.
fn wire(host: &Netns, folder: &str, pod: usize) -> Result<Netns> {
    let path = format!("{folder}/pod-{pod}");
    let (netns, ip) = (Netns::create(&path)?, address(pod));
    host.run(|| {
        shell(&format!(
            "ip link add pod{pod} type veth peer name eth0 netns {path} && ip link set pod{pod} up && \
             ip address add 169.254.1.1/32 dev pod{pod}"
        ))
    })??;
    netns.run(|| {
        shell(&format!(
            "ip link set lo up && ip link set eth0 up && ip address add {ip}/32 dev eth0 && \
             ip route add 169.254.1.1 dev eth0 && ip route add default via 169.254.1.1"
        ))
    })??;
    host.run(|| shell(&format!("ip route add {ip} dev pod{pod}")))??;
    Ok(netns)
}

/// Answers in the calling thread's namespace until the program ends: one byte for each that comes.
fn serve() -> Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", SERVICE))?;
    std::thread::spawn(move || {
        // The first connection stays: it is the one that talks. Those behind it come and go.
        if let Some(Ok(talk)) = listener.incoming().next() {
            std::thread::spawn(move || echo(talk));
        }
        listener.incoming().for_each(drop);
    });
    Ok(())
}

fn echo(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut byte = [0];
    loop {
        stream.read_exact(&mut byte)?;
        stream.write_all(&byte)?;
    }
}

fn shell(line: &str) -> Result<()> {
    let output = Command::new("sh").args(["-c", line]).output()?;
    if !output.status.success() {
        bail!("{line}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
