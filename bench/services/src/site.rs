//! The machine of a proxy: a node with a client in a pod, and a host that answers at the addresses of all endpoints.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use podwire_kernel::Netns;
use podwire_tests::Node;

use crate::objects::{EndpointPort, Service, PORT};

/// The node's address.
pub const NODE_IP: &str = "172.16.0.1";
/// A connection that is refused or has no route fails at once. This is for packets that are dropped.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// Until the proxy knows a cluster IP, the node answers that it is unreachable, without a limit of such answers.
const NETWORK: &str = "set -e
echo 1 >/proc/sys/net/ipv4/ip_forward
echo 0 >/proc/sys/net/ipv4/icmp_ratemask
ip netns add client
ip netns add far
ip link add pod type veth peer name eth0 netns client
ip link add eth0 type veth peer name eth0 netns far
ip addr add 10.1.0.1/32 dev pod
ip link set pod up
ip route add 10.1.0.9/32 dev pod
ip addr add 172.16.0.1/24 dev eth0
ip link set eth0 up
ip route add default via 172.16.0.2
ip route add unreachable 10.96.0.0/12
ip -n client link set lo up
ip -n client addr add 10.1.0.9/32 dev eth0
ip -n client link set eth0 up
ip -n client route add 10.1.0.1 dev eth0
ip -n client route add default via 10.1.0.1
ip -n far link set lo up
ip -n far addr add 172.16.0.2/24 dev eth0
ip -n far link set eth0 up
ip -n far route add 10.1.0.0/24 via 172.16.0.1
ip -n far route add local 11.0.0.0/8 dev lo";

pub struct Site {
    pub node: Node,
    client: Netns,
}

impl Site {
    pub fn new() -> Result<Site> {
        let node = Node::new();
        node.sh(NETWORK);
        let netns = |name: &str| Netns::open(format!("/proc/{}/root/run/netns/{name}", node.pid()));
        let (client, far) = (netns("client")?, netns("far")?);
        EndpointPort::ALL.into_iter().try_for_each(|port| serve(&far, port))?;
        Ok(Site { node, client })
    }

    /// The node's network namespace.
    pub fn netns(&self) -> Result<Netns> {
        Ok(Netns::open(format!("/proc/{}/ns/net", self.node.pid()))?)
    }

    /// Runs something in the namespace of the client.
    pub fn in_client<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
        Ok(self.client.run(work)?)
    }
}

/// Answers connections to all endpoints at a port. The thread ends with this program.
fn serve(netns: &Netns, port: EndpointPort) -> Result<()> {
    let listener = netns.run(|| TcpListener::bind(("0.0.0.0", port.number())))?;
    let listener = listener.with_context(|| format!("listen on port {}", port.number()))?;
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            // A client that has gone away gets no answer.
            let _ = stream.write_all(&[port.answer()]);
        }
    });
    Ok(())
}

/// Connects to a Service and waits for the answer. In the namespace of the client.
pub fn connect(service: Service) -> std::io::Result<u8> {
    let to = SocketAddr::from((service.ip(), PORT));
    let mut stream = TcpStream::connect_timeout(&to, CONNECT_TIMEOUT)?;
    stream.set_read_timeout(Some(CONNECT_TIMEOUT))?;
    let mut answer = [0];
    stream.read_exact(&mut answer)?;
    Ok(answer[0])
}

/// The time of a connection to a Service, in microseconds. In the namespace of the client.
pub fn connection_time(service: Service) -> Result<f64> {
    let start = Instant::now();
    let answer = connect(service).with_context(|| format!("connect to {service:?} at {}", service.ip()))?;
    let time = start.elapsed().as_secs_f64() * 1e6;
    ensure!(answer == EndpointPort::A.answer(), "{service:?} answers {answer}, its endpoints have port A");
    Ok(time)
}
