//! Answers: in each place, on each of its addresses, whoever comes by TCP or UDP is told as whom he was seen, and how many
//! bytes arrived.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::thread::JoinHandle;
use std::time::Duration;

use podwire_netlink::sys;
use serde::{Deserialize, Serialize};

use crate::{Error, Place, Result};

/// A visitor who says nothing more is left alone after this.
const SILENCE: Duration = Duration::from_secs(5);

/// The address of a place, and the ports at which it answers there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Door {
    /// The address.
    pub address: IpAddr,
    /// Where streams are answered.
    pub tcp: u16,
    /// Where datagrams are.
    pub udp: u16,
    /// The largest packet that the link with this address promises to carry.
    pub mtu: u32,
}

/// A place that answers until this is dropped.
pub(crate) struct Echo {
    pub doors: Vec<Door>,
    /// Its other end is closed: the place falls silent.
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

enum Ear {
    Tcp(TcpListener),
    Udp(UdpSocket),
}

impl AsFd for Ear {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        match self {
            Ear::Tcp(listener) => listener.as_fd(),
            Ear::Udp(socket) => socket.as_fd(),
        }
    }
}

impl Echo {
    /// Sockets belong to the namespace in which they were made; who reads them may be anywhere.
    pub fn start(place: &Place) -> Result<Echo> {
        let (mut doors, mut ears) = (Vec::new(), Vec::new());
        for address in &place.addresses {
            let open = place.netns.run(|| open(*address))?;
            let (mut door, both) = open.map_err(|source| Error::Listen {
                place: place.name.clone(),
                address: *address,
                source,
            })?;
            door.mtu = place.promise(*address).unwrap_or(u32::MAX);
            doors.push(door);
            ears.extend(both);
        }
        let (stopped, stop) = sys::pipe().map_err(|source| Error::System { what: "make a pipe", source })?;
        let thread = std::thread::spawn(move || listen(&ears, &stopped));
        Ok(Echo { doors, stop: Some(stop), thread: Some(thread) })
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

fn open(address: IpAddr) -> io::Result<(Door, [Ear; 2])> {
    let any = SocketAddr::new(address, 0);
    let (tcp, udp) = (TcpListener::bind(any)?, UdpSocket::bind(any)?);
    tcp.set_nonblocking(true)?;
    udp.set_nonblocking(true)?;
    let door = Door { address, tcp: tcp.local_addr()?.port(), udp: udp.local_addr()?.port(), mtu: u32::MAX };
    Ok((door, [Ear::Tcp(tcp), Ear::Udp(udp)]))
}

fn listen(ears: &[Ear], stopped: &OwnedFd) {
    let all: Vec<_> = ears.iter().map(AsFd::as_fd).chain([stopped.as_fd()]).collect();
    loop {
        let Ok(ready) = sys::readable(&all, Duration::from_secs(3600)) else { return };
        if ready.last() == Some(&true) {
            return;
        }
        for (ear, _) in ears.iter().zip(&ready).filter(|(_, ready)| **ready) {
            match ear {
                Ear::Tcp(listener) => {
                    while let Ok((stream, from)) = listener.accept() {
                        // One who dawdles keeps nobody waiting.
                        std::thread::spawn(move || drop(answer_stream(stream, from.ip())));
                    }
                }
                Ear::Udp(socket) => answer_datagrams(socket),
            }
        }
    }
}

fn answer_stream(mut stream: TcpStream, from: IpAddr) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(SILENCE))?;
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
