//! A node in its own network namespaces, with two real pods and a policy agent for hundreds of pods.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use podwire_kernel::Netns;
use podwire_policy_agent::{PolicyAgent, PolicyAgentOptions, PolicyStatus, Update};

use crate::cluster::{address, Cluster, CLIENT, NODE, SERVER, SERVICE};

/// The timeout of an update.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The interval of reading the status.
const POLL: Duration = Duration::from_micros(50);
/// After a change the policy agent reconciles once more because of its own notifications. The next update starts after
/// that.
const SETTLE: Duration = Duration::from_millis(15);

pub struct Node {
    pub cluster: Cluster,
    client: Netns,
    policy_agent: PolicyAgent,
    service: SocketAddr,
    connection: TcpStream,
}

impl Node {
    pub fn new(cluster: Cluster) -> Result<Node> {
        let directory = format!("/run/bench/{}-{}", cluster.policies, cluster.pods);
        let host = Netns::create(format!("{directory}/node"))?;
        host.run(|| shell("ip link set lo up && sysctl -qw net.ipv4.ip_forward=1"))??;
        let server = attach(&host, &directory, SERVER)?;
        let client = attach(&host, &directory, CLIENT)?;
        // Conntrack drops closed connections fast, so that rounds do not affect each other.
        host.run(|| shell("sysctl -qw net.netfilter.nf_conntrack_tcp_timeout_time_wait=1"))??;
        let policy_agent = host.run(|| {
            PolicyAgent::start(PolicyAgentOptions {
                node_name: NODE.into(),
                lists_pods: true,
                close_denied: false,
                ..PolicyAgentOptions::default()
            })
        })??;
        policy_agent.set_networks(vec!["10.9.0.0/16".parse()?], Vec::new())?;
        cluster.listed()?.into_iter().try_for_each(|update| policy_agent.update(update))?;
        let start = Instant::now();
        while !policy_agent.status().enforced {
            wait(start, &policy_agent.status())?;
        }
        server.run(serve)??;
        let service = SocketAddr::new(address(SERVER).parse()?, SERVICE);
        let connection = client
            .run(|| TcpStream::connect_timeout(&service, TIMEOUT))?
            .context("connect to the service")?;
        connection.set_nodelay(true)?;
        let closed = SocketAddr::new(service.ip(), SERVICE + 1);
        let answer = client.run(|| TcpStream::connect_timeout(&closed, Duration::from_millis(300)))?;
        let refused = answer.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused);
        ensure!(refused == (cluster.policies == 0), "{cluster:?}: the wrong policies are enforced");
        Ok(Node { cluster, client, policy_agent, service, connection })
    }

    /// Opens connections one after the other. Returns the microseconds of one.
    pub fn connect(&self, times: u32) -> Result<f64> {
        let work = || -> std::io::Result<Duration> {
            let start = Instant::now();
            for _ in 0..times {
                // The server closes at once; the read returns when it has.
                let _ = TcpStream::connect(self.service)?.read(&mut [0])?;
            }
            Ok(start.elapsed())
        };
        Ok(self.client.run(work)??.as_secs_f64() * 1e6 / f64::from(times))
    }

    /// Round trips of one byte on one connection. Returns the microseconds of one.
    pub fn ping_pong(&mut self, times: u32) -> Result<f64> {
        let start = Instant::now();
        for _ in 0..times {
            self.connection.write_all(b"?")?;
            self.connection.read_exact(&mut [0])?;
        }
        Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(times))
    }

    /// Milliseconds from the update to the kernel's acknowledgement.
    pub fn update(&self, update: Update) -> Result<f64> {
        std::thread::sleep(SETTLE);
        let before = self.policy_agent.status().changes;
        let start = Instant::now();
        self.policy_agent.update(update)?;
        loop {
            let status = self.policy_agent.status();
            if status.changes > before {
                return Ok(start.elapsed().as_secs_f64() * 1e3);
            }
            wait(start, &status)?;
        }
    }
}

fn wait(since: Instant, status: &PolicyStatus) -> Result<()> {
    ensure!(since.elapsed() < TIMEOUT, "no result within {TIMEOUT:?}: {status:?}");
    std::thread::sleep(POLL);
    Ok(())
}

/// A routed pod.
fn attach(host: &Netns, directory: &str, pod: usize) -> Result<Netns> {
    let path = format!("{directory}/pod-{pod}");
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

/// Serves in the network namespace of the calling thread until the process ends.
fn serve() -> Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", SERVICE))?;
    std::thread::spawn(move || {
        // The first connection stays open for the round trips. The others are closed at once.
        if let Some(Ok(stream)) = listener.incoming().next() {
            std::thread::spawn(move || echo(stream));
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
