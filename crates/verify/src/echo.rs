//! The echo service of an endpoint: on each of its addresses, it answers TCP and UDP with the source address that it saw and the
//! number of bytes that arrived.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::thread::JoinHandle;
use std::time::Duration;

use podwire_netlink::sys;
use serde::{Deserialize, Serialize};

use crate::{Endpoint, Error, Missing, Result};

/// A TCP connection without data is closed after this.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// An address of an endpoint and its echo ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EchoAddress {
    /// The address.
    pub address: IpAddr,
    /// The TCP port.
    pub tcp: u16,
    /// The UDP port.
    pub udp: u16,
    /// The MTU of the link with this address.
    pub mtu: u32,
}

/// The echo service of one endpoint; it ends when this is dropped.
pub(crate) struct Echo {
    pub addresses: Vec<EchoAddress>,
    /// Addresses without an echo service, each with the reason.
    missing: Vec<String>,
    /// Closing it stops the thread.
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

enum Listener {
    Tcp(TcpListener),
    Udp(UdpSocket),
}

impl AsFd for Listener {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Udp(socket) => socket.as_fd(),
        }
    }
}

impl Echo {
    /// Opens sockets in the endpoint's namespace. A socket stays in the namespace in which it was created, so the thread that
    /// reads them need not enter it.
    pub fn start(endpoint: &Endpoint) -> Result<Echo> {
        let (mut addresses, mut missing, mut listeners) = (Vec::new(), Vec::new(), Vec::new());
        for address in &endpoint.addresses {
            let opened = endpoint.netns.run(|| open(*address).map_err(|error| error.to_string()));
            match opened.map_err(|error| error.to_string()).and_then(|opened| opened) {
                Ok((echo, both)) => {
                    addresses
                        .push(EchoAddress { mtu: endpoint.mtu_of(*address).unwrap_or(u32::MAX), ..echo });
                    listeners.extend(both);
                }
                // It was removed a moment ago.
                Err(why) => missing.push(format!("{address}: cannot listen on it: {why}")),
            }
        }
        let (stopped, stop) =
            sys::pipe().map_err(|source| Error::System { what: "create a pipe", source })?;
        let thread = std::thread::spawn(move || listen(&listeners, &stopped));
        Ok(Echo { addresses, missing, stop: Some(stop), thread: Some(thread) })
    }

    /// What the report says about addresses of `endpoint` without an echo service.
    pub fn report_missing(&self, endpoint: &Endpoint) -> Vec<Missing> {
        self.missing.iter().map(|why| Missing::new(&endpoint.name, endpoint.kind, why)).collect()
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn open(address: IpAddr) -> io::Result<(EchoAddress, [Listener; 2])> {
    let any = SocketAddr::new(address, 0);
    let (tcp, udp) = (TcpListener::bind(any)?, UdpSocket::bind(any)?);
    tcp.set_nonblocking(true)?;
    udp.set_nonblocking(true)?;
    let echo =
        EchoAddress { address, tcp: tcp.local_addr()?.port(), udp: udp.local_addr()?.port(), mtu: u32::MAX };
    Ok((echo, [Listener::Tcp(tcp), Listener::Udp(udp)]))
}

fn listen(listeners: &[Listener], stopped: &OwnedFd) {
    let all: Vec<_> = listeners.iter().map(AsFd::as_fd).chain([stopped.as_fd()]).collect();
    loop {
        let Ok(ready) = sys::readable(&all, Duration::from_secs(3600)) else { return };
        if ready.last() == Some(&true) {
            return;
        }
        for (one, _) in listeners.iter().zip(&ready).filter(|(_, ready)| **ready) {
            match one {
                Listener::Tcp(listener) => {
                    while let Ok((stream, from)) = listener.accept() {
                        // On its own thread: a slow peer must not delay the others.
                        std::thread::spawn(move || drop(answer_stream(stream, from.ip())));
                    }
                }
                Listener::Udp(socket) => answer_datagrams(socket),
            }
        }
    }
}

fn answer_stream(mut stream: TcpStream, from: IpAddr) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(READ_TIMEOUT))?;
    let mut buffer = vec![0; 16 * 1024];
    let mut total = 0;
    loop {
        match stream.read(&mut buffer)? {
            0 => break,
            length => total += length,
        }
    }
    stream.write_all(format!("{from} {total}").as_bytes())
}

fn answer_datagrams(socket: &UdpSocket) {
    let mut buffer = vec![0; 65_536];
    while let Ok((length, from)) = socket.recv_from(&mut buffer) {
        let _ = socket.send_to(format!("{} {length}", from.ip()).as_bytes(), from);
    }
}
