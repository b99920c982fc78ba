//! The benchmark's own client and server: threads of this program, with sockets in the namespaces of pods and nodes.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Barrier};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure, Context, Result};
use podwire_kernel::Netns;
use rustix::thread::CpuSet;
use socket2::SockRef;

use crate::processor;

/// The port of the servers.
pub const PORT: u16 = 5201;
/// A connection that takes longer than this has failed.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Nothing answers on a closed port of a pod with policies.
const SHORT: Duration = Duration::from_millis(300);
/// Agents learn of a new pod's route in a moment.
const READY: Duration = Duration::from_secs(30);
/// The interval of attempts.
const PAUSE: Duration = Duration::from_millis(50);
/// Congestion control: `bbr`, the default on some machines, paces streams by its own estimate of the path.
const CONGESTION_CONTROL: (&str, &str) = ("/proc/sys/net/ipv4/tcp_congestion_control", "reno");
/// The size of one write or read of a stream.
const BLOCK: usize = 128 << 10;
/// Measured operations for each one of the warm-up.
const WARM_UP: u32 = 10;

/// A server in a namespace.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
}

impl Server {
    pub fn listen(netns: &Netns) -> Result<Arc<Server>> {
        set_congestion_control(netns)?;
        let listener = netns.run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)))??;
        SockRef::from(&listener).set_read_timeout(Some(TIMEOUT))?;
        Ok(Arc::new(Server { listener }))
    }

    fn accept(&self) -> io::Result<TcpStream> {
        prepared(self.listener.accept()?.0)
    }
}

/// The two ends of a path, and the nodes between them.
#[derive(Clone, Debug)]
pub struct Ends {
    pub client: Arc<Netns>,
    pub server: Arc<Server>,
    /// Where the client connects to.
    pub target: SocketAddr,
    /// The namespaces with firewall rules on the way.
    pub nodes: Vec<Arc<Netns>>,
}

/// The result of a transfer.
pub struct Transfer {
    pub gigabits_per_second: f64,
    pub cpu_seconds_per_gigabyte: f64,
}

impl Ends {
    /// Waits until the path works.
    pub fn wait_until_ready(&self) -> Result<()> {
        set_congestion_control(&self.client)?;
        let end = Instant::now() + READY;
        loop {
            match self.connect() {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > end => return Err(error),
                Err(_) => thread::sleep(PAUSE),
            }
        }
    }

    /// Whether the next port refuses connections. A policy drops them instead.
    pub fn next_port_refuses(&self) -> Result<bool> {
        let closed = SocketAddr::new(self.target.ip(), self.target.port() + 1);
        let answer = self.client.run(|| TcpStream::connect_timeout(&closed, SHORT))?;
        Ok(answer.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused))
    }

    /// A connection: the client's and the server's end.
    pub fn connect(&self) -> Result<(TcpStream, TcpStream)> {
        let open = || prepared(TcpStream::connect_timeout(&self.target, TIMEOUT)?);
        let client = self.client.run(open)?.with_context(|| format!("connect to {}", self.target))?;
        Ok((client, self.server.accept().context("accept")?))
    }

    /// Round trips of one byte on one connection, both ends on this CPU. Returns the microseconds of one.
    pub fn round_trips(&self, times: u32, cpu: usize) -> Result<f64> {
        let (mut client, server) = self.connect()?;
        thread::scope(|scope| {
            let server = scope.spawn(move || pin(cpu).and_then(|()| echo(server)));
            let client = scope.spawn(move || -> io::Result<f64> {
                pin(cpu)?;
                for _ in 0..times / WARM_UP {
                    round_trip(&mut client)?;
                }
                let start = Instant::now();
                for _ in 0..times {
                    round_trip(&mut client)?;
                }
                Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(times))
            });
            let micros = joined(client)?;
            joined(server)?;
            Ok(micros)
        })
    }

    /// Connections with a byte there and a byte back, one after the other, both ends on this CPU. Returns the
    /// microseconds of one.
    pub fn connections(&self, times: u32, cpu: usize) -> Result<f64> {
        let all = times + times / WARM_UP;
        let connection = || -> io::Result<()> {
            let mut stream = prepared(TcpStream::connect_timeout(&self.target, TIMEOUT)?)?;
            round_trip(&mut stream)
        };
        let client = || -> io::Result<f64> {
            pin(cpu)?;
            for _ in times..all {
                connection()?;
            }
            let start = Instant::now();
            for _ in 0..times {
                connection()?;
            }
            Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(times))
        };
        let server = || -> io::Result<()> {
            pin(cpu)?;
            for _ in 0..all {
                let mut stream = self.server.accept()?;
                let mut byte = [0];
                stream.read_exact(&mut byte)?;
                stream.write_all(&byte)?;
            }
            Ok(())
        };
        thread::scope(|scope| {
            let server = scope.spawn(server);
            let micros = joined(scope.spawn(|| self.client.run(client).map_err(io::Error::other)?))?;
            joined(server)?;
            Ok(micros)
        })
    }

    /// Sends on this number of connections at once, for this time, on all CPUs.
    pub fn transfer(&self, streams: usize, time: Duration) -> Result<Transfer> {
        let pairs = (0..streams).map(|_| self.connect()).collect::<Result<Vec<_>>>()?;
        let barrier = Barrier::new(2 * streams + 1);
        let kernel = processor::kernel_time()?;
        let (bytes, seconds, threads) = thread::scope(|scope| -> Result<(u64, f64, Duration)> {
            let (mut clients, mut servers) = (Vec::new(), Vec::new());
            for (client, server) in pairs {
                let barrier = &barrier;
                clients.push(scope.spawn(move || counted(barrier, || send(client, time))));
                servers.push(scope.spawn(move || counted(barrier, || receive(server))));
            }
            barrier.wait();
            let start = Instant::now();
            let mut spent = Duration::ZERO;
            for client in clients {
                spent += joined(client)?.1;
            }
            let mut bytes = 0;
            for server in servers {
                let (received, time) = joined(server)?;
                (bytes, spent) = (bytes + received, spent + time);
            }
            Ok((bytes, start.elapsed().as_secs_f64(), spent))
        })?;
        ensure!(bytes > 0, "no byte arrived");
        let spent = threads + processor::kernel_time()?.saturating_sub(kernel);
        Ok(Transfer {
            gigabits_per_second: bytes as f64 * 8.0 / 1e9 / seconds,
            cpu_seconds_per_gigabyte: spent.as_secs_f64() / (bytes as f64 / 1e9),
        })
    }
}

fn set_congestion_control(netns: &Netns) -> Result<()> {
    let (path, name) = CONGESTION_CONTROL;
    Ok(netns.run(|| fs::write(path, name))??)
}

/// Sends a byte and waits for a byte.
fn round_trip(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(b"?")?;
    stream.read_exact(&mut [0])
}

/// Answers each byte until the client closes.
fn echo(mut stream: TcpStream) -> io::Result<()> {
    let mut byte = [0];
    while stream.read(&mut byte)? > 0 {
        stream.write_all(&byte)?;
    }
    Ok(())
}

fn send(mut stream: TcpStream, time: Duration) -> io::Result<u64> {
    let (block, end) = (vec![0; BLOCK], Instant::now() + time);
    let mut sent = 0;
    while Instant::now() < end {
        stream.write_all(&block)?;
        sent += block.len() as u64;
    }
    Ok(sent)
}

fn receive(mut stream: TcpStream) -> io::Result<u64> {
    let mut block = vec![0; BLOCK];
    let mut received = 0;
    loop {
        match stream.read(&mut block)? {
            0 => return Ok(received),
            length => received += length as u64,
        }
    }
}

/// Starts with the others. Returns also the processor time of this thread.
fn counted(barrier: &Barrier, work: impl FnOnce() -> io::Result<u64>) -> io::Result<(u64, Duration)> {
    barrier.wait();
    let before = processor::thread_time()?;
    let bytes = work()?;
    Ok((bytes, processor::thread_time()?.saturating_sub(before)))
}

fn prepared(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

/// Moves the calling thread to a CPU.
fn pin(cpu: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

fn joined<T>(thread: ScopedJoinHandle<'_, io::Result<T>>) -> Result<T> {
    Ok(thread.join().map_err(|_| anyhow!("a thread panicked"))??)
}
