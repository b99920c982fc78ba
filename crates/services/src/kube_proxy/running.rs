//! A kube-proxy that runs in this network namespace.

use std::fmt;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use crate::{Error, Result};

/// The port of kube-proxy's metrics, which also tells its mode.
const PORT: u16 = 10249;
/// For an answer over loopback.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The longest response that is read.
const MAX_RESPONSE: u64 = 4096;

/// By what a running kube-proxy is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sign {
    /// It answers at its port, with its mode. One that is a part of another program, as in k3s, has no process of its own.
    Port(SocketAddr, String),
    /// A process with its name. In a container without the host's processes none is seen.
    Process(u32),
}

impl fmt::Display for Sign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sign::Port(addr, mode) => write!(f, "http://{addr}/proxyMode answers {mode:?}"),
            Sign::Process(id) => write!(f, "process {id} is called kube-proxy"),
        }
    }
}

/// An error if kube-proxy runs.
pub fn refuse_running() -> Result<()> {
    find_running().map_or(Ok(()), |sign| Err(Error::KubeProxyRuns(sign)))
}

/// A sign of a running kube-proxy.
pub fn find_running() -> Option<Sign> {
    find_process(Path::new("/proc")).map(Sign::Process).or_else(find_port)
}

fn find_port() -> Option<Sign> {
    let addrs = [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)];
    addrs.into_iter().map(|ip| SocketAddr::new(ip, PORT)).find_map(|addr| Some(Sign::Port(addr, mode(addr)?)))
}

/// What kube-proxy's port answers; `None` if none answers, or another program does.
fn mode(addr: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&addr, TIMEOUT).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).ok()?;
    stream.set_write_timeout(Some(TIMEOUT)).ok()?;
    let request = format!("GET /proxyMode HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut response = Vec::new();
    // A server may break off after its response.
    let _ = stream.take(MAX_RESPONSE).read_to_end(&mut response);
    body(&String::from_utf8_lossy(&response))
}

/// The body of a response with status 200.
fn body(response: &str) -> Option<String> {
    let (head, body) = response.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?;
    (status == "200").then(|| body.trim().to_owned())
}

/// The number of a process `kube-proxy` in the network namespace of this thread.
fn find_process(proc: &Path) -> Option<u32> {
    let here = std::fs::read_link(proc.join("thread-self/ns/net")).ok()?;
    let is_kube_proxy = |process: &Path| {
        // Both fail if the process ends meanwhile.
        std::fs::read(process.join("comm")).is_ok_and(|name| name == b"kube-proxy\n")
            && std::fs::read_link(process.join("ns/net")).is_ok_and(|namespace| namespace == here)
    };
    let entries = std::fs::read_dir(proc).ok()?;
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .find(|id| is_kube_proxy(&proc.join(id.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_response_with_status_200_counts() {
        for (response, expected) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\niptables", Some("iptables")),
            ("HTTP/1.0 200 OK\r\n\r\nnftables\n", Some("nftables")),
            ("HTTP/1.1 404 Not Found\r\n\r\n404 page not found\n", None),
            ("SSH-2.0-OpenSSH\r\n", None),
            ("", None),
        ] {
            assert_eq!(body(response).as_deref(), expected, "{response:?}");
        }
    }
}
