//! A netlink socket: requests, batches, dumps and notices, all blocking.
//!
//! A socket belongs to the network namespace in which it was opened. Any thread may use it, in any namespace.

#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::message::{Batch, Frame, Frames, Message, HEADER};
use crate::sys;

/// The largest datagram of a dump.
const BUFFER: usize = 32 * 1024;
/// The number of messages in one send, whose answers wait in the socket's receive buffer.
const BATCH: usize = 96;

const NLMSG_ERROR: u16 = libc::NLMSG_ERROR as u16;
const NLMSG_DONE: u16 = libc::NLMSG_DONE as u16;
const F_ACK: u16 = libc::NLM_F_ACK as u16;
const F_DUMP: u16 = libc::NLM_F_DUMP as u16;
const F_DUMP_INTR: u16 = libc::NLM_F_DUMP_INTR as u16;
const F_CAPPED: u16 = 0x100; // linux/netlink.h NLM_F_CAPPED
const F_ACK_TLVS: u16 = 0x200; // linux/netlink.h NLM_F_ACK_TLVS
const NLMSGERR_ATTR_MSG: u16 = 1;

/// Buffers of closed sockets, for reuse. Returning a buffer to the system interrupts every CPU in a threaded program,
/// and a plugin opens several sockets.
///
/// Not a thread-local: its destructor costs a single-threaded program a dozen system calls and page faults. A caller
/// that finds the mutex taken does without, so that a forked child never waits for a thread that it does not have.
static SPARE: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());
/// The number of buffers that are kept.
const SPARES: usize = 8;

fn buffer() -> Vec<u8> {
    let spare = SPARE.try_lock().ok().and_then(|mut spare| spare.pop());
    spare.unwrap_or_else(|| vec![0; BUFFER])
}

/// A blocking netlink socket.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    seq: u32,
    buffer: Vec<u8>,
    calls: u64,
}

impl Drop for Socket {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        if let Some(mut spare) = SPARE.try_lock().ok().filter(|spare| spare.len() < SPARES) {
            spare.push(buffer);
        }
    }
}

impl Socket {
    /// Opens a socket for links, addresses, routes and traffic control of the current namespace.
    pub fn route() -> Result<Socket> {
        Socket::open(libc::NETLINK_ROUTE)
    }

    /// Opens a socket for nf_tables and connection tracking of the current namespace.
    pub fn netfilter() -> Result<Socket> {
        Socket::open(libc::NETLINK_NETFILTER)
    }

    /// Opens a socket for generic netlink ([`genl`](crate::genl)) of the current namespace.
    pub fn generic() -> Result<Socket> {
        Socket::open(libc::NETLINK_GENERIC)
    }

    /// Sets the largest size of a transaction. The default is about 200 kB.
    pub fn set_send_buffer(&mut self, bytes: usize) -> Result<()> {
        let doing = "enlarge the send buffer of a netlink socket";
        sys::set_send_buffer(self.fd.as_fd(), i32::try_from(bytes).unwrap_or(i32::MAX))
            .map_err(|source| Error::Io { doing: doing.into(), source })
    }

    /// The index and the hardware address of an interface in the socket's namespace.
    pub(crate) fn interface(&self, name: &str) -> Result<(u32, [u8; 6])> {
        sys::interface(self.fd.as_fd(), name)
            .map_err(|source| Error::Io { doing: format!("look up link {name}"), source })
    }

    fn open(protocol: i32) -> Result<Socket> {
        let opened = || -> io::Result<OwnedFd> {
            let fd = sys::netlink_socket(protocol)?;
            // Extended acks contain the kernel's error text; capped acks do not repeat the request; strict checks let
            // the kernel filter dumps. All are optional.
            for option in [libc::NETLINK_EXT_ACK, libc::NETLINK_CAP_ACK, libc::NETLINK_GET_STRICT_CHK] {
                let _ = sys::set_netlink_option(fd.as_fd(), option, 1);
            }
            Ok(fd)
        };
        let fd = opened().map_err(|source| Error::Io { doing: "open a netlink socket".into(), source })?;
        Ok(Socket { fd, seq: 0, buffer: buffer(), calls: 0 })
    }

    /// Joins a multicast group of notices (`RTNLGRP_…`). An unbound socket has the kernel's port and receives no
    /// notices, so the socket is bound first. A socket that has sent something, or joined a group, is already bound:
    /// EINVAL.
    pub fn subscribe(&mut self, group: u32) -> Result<()> {
        match sys::bind_netlink(self.fd.as_fd()) {
            Err(source) if source.raw_os_error() != Some(libc::EINVAL) => {
                return Err(Error::Io { doing: "bind a netlink socket".into(), source })
            }
            _ => {}
        }
        sys::set_netlink_option(self.fd.as_fd(), libc::NETLINK_ADD_MEMBERSHIP, group as i32)
            .map_err(|source| Error::Io { doing: format!("subscribe to netlink group {group}"), source })
    }

    /// Sends a request and waits for its acknowledgement.
    pub fn request(&mut self, message: Message) -> Result<()> {
        let doing = message.doing.clone();
        let seq = self.send(message, F_ACK)?;
        self.receive(seq, &doing, |_| {}).map(drop)
    }

    /// Sends a request with one answer (`RTM_GET…` of one object).
    pub fn query<T>(&mut self, message: Message, read: impl Fn(Frame<'_>) -> Option<T>) -> Result<T> {
        let doing = message.doing.clone();
        let seq = self.send(message, 0)?;
        loop {
            let length = self.read(&doing)?;
            let Some(frame) = Frames::new(&self.buffer[..length]).find(|frame| frame.seq == seq) else {
                continue;
            };
            if frame.kind == NLMSG_ERROR {
                acknowledged(&frame, &doing)?;
            }
            return read(frame).ok_or(Error::Malformed { doing, reason: "not the requested object".into() });
        }
    }

    /// Lists all objects of a kind. Returns whether the list is consistent: a change during the dump may hide objects.
    fn dump(&mut self, message: Message, mut each: impl FnMut(Frame<'_>)) -> Result<bool> {
        let doing = message.doing.clone();
        let seq = self.send(message, F_DUMP)?;
        self.receive(seq, &doing, &mut each)
    }

    /// Lists all objects of a kind and combines them with `absorb`. Repeats the dump if objects changed meanwhile; the
    /// fifth result is used in any case.
    pub fn gather<T: Default>(
        &mut self,
        message: Message,
        mut absorb: impl FnMut(&mut T, Frame<'_>),
    ) -> Result<T> {
        for attempt in 0.. {
            let mut all = T::default();
            let is_consistent = self.dump(message.clone(), |frame| absorb(&mut all, frame))?;
            if is_consistent || attempt == 4 {
                return Ok(all);
            }
        }
        unreachable!("the loop returns on its fifth turn")
    }

    /// As [`gather`](Self::gather), into a list.
    pub fn list<T>(
        &mut self,
        message: Message,
        mut read: impl FnMut(Frame<'_>) -> Option<T>,
    ) -> Result<Vec<T>> {
        self.gather(message, |all: &mut Vec<T>, frame| all.extend(read(frame)))
    }

    /// Sends all messages in one write. The kernel executes every message, also after a failed one; the first failure
    /// is returned.
    pub fn batch(&mut self, batch: Batch) -> Result<()> {
        self.batch_each(batch)?.into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
    }

    /// As [`batch`](Self::batch), but returns all failures, each with the position of its message.
    ///
    /// The kernel executes messages in order and always reports failures, so only the last message of a write requests
    /// an acknowledgement: it confirms all messages before it.
    pub fn batch_each(&mut self, batch: Batch) -> Result<Vec<(usize, Error)>> {
        let mut failures = Vec::new();
        let mut done = 0;
        let mut messages = batch.messages;
        for chunk in messages.chunks_mut(BATCH) {
            let base = self.seq + 1;
            let last = chunk.len() - 1;
            let mut bytes = Vec::with_capacity(chunk.len() * 128);
            for (n, message) in chunk.iter_mut().enumerate() {
                self.seq += 1;
                message.seal(if n == last { F_ACK } else { 0 }, self.seq);
                bytes.extend_from_slice(&message.bytes);
            }
            self.write(&bytes, &chunk[0].doing)?;
            self.read_answers(base, chunk, |n, error| failures.push((done + n, error)))?;
            done += chunk.len();
        }
        Ok(failures)
    }

    /// Reads the answers to messages with sequence numbers from `base` on, until the last is answered.
    fn read_answers(
        &mut self,
        base: u32,
        messages: &[Message],
        mut failed: impl FnMut(usize, Error),
    ) -> Result<()> {
        loop {
            let length = self.read(&messages[0].doing)?;
            for frame in Frames::new(&self.buffer[..length]) {
                let at = frame.seq.wrapping_sub(base) as usize;
                let (Some(message), NLMSG_ERROR) = (messages.get(at), frame.kind) else { continue };
                if let Err(error) = acknowledged(&frame, &message.doing) {
                    failed(at, error);
                }
                if at + 1 == messages.len() {
                    return Ok(());
                }
            }
        }
    }

    /// Sends an nf_tables transaction: the kernel applies all of it or nothing. The first and the last message delimit
    /// the batch; they are answered only if the batch itself is invalid.
    pub fn transaction(&mut self, messages: Vec<Message>) -> Result<()> {
        let base = self.seq + 1;
        let last = messages.len().saturating_sub(2);
        let mut bytes = Vec::with_capacity(messages.len() * 160);
        let mut doing = Vec::with_capacity(messages.len());
        for (n, mut message) in messages.into_iter().enumerate() {
            self.seq += 1;
            message.seal(if n == last { F_ACK } else { 0 }, self.seq);
            bytes.extend_from_slice(&message.bytes);
            doing.push(message.doing);
        }
        self.write(&bytes, doing.get(1).map_or("nf_tables transaction", String::as_str))?;
        let mut first_error = None;
        loop {
            let length = self.read(&doing[0])?;
            for frame in Frames::new(&self.buffer[..length]) {
                let at = frame.seq.wrapping_sub(base) as usize;
                let (Some(doing), NLMSG_ERROR) = (doing.get(at), frame.kind) else { continue };
                if let Err(error) = acknowledged(&frame, doing) {
                    first_error.get_or_insert(error);
                }
                if at == last || (at == 0 && first_error.is_some()) {
                    return first_error.map_or(Ok(()), Err);
                }
            }
        }
    }

    /// Waits for notices of the joined groups until `wanted` returns a value. `None` after the timeout, or if notices
    /// were lost; read the state itself then.
    pub fn notice<T>(
        &mut self,
        timeout: Duration,
        mut wanted: impl FnMut(Frame<'_>) -> Option<T>,
    ) -> Result<Option<T>> {
        let end = Instant::now() + timeout;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if !sys::readable(&[self.fd.as_fd()], left).map_err(|source| self.wait_error(source))?[0] {
                return Ok(None);
            }
            let length = match sys::receive(self.fd.as_fd(), &mut self.buffer) {
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => return Ok(None),
                other => other.map_err(|source| self.wait_error(source))?,
            };
            for frame in Frames::new(&self.buffer[..length]) {
                if let Some(value) = wanted(frame) {
                    return Ok(Some(value));
                }
            }
        }
    }

    /// Passes all pending notices to `each` without waiting. Returns `false` if notices were lost because the receive
    /// buffer overflowed; read the state itself then.
    pub fn drain(&mut self, mut each: impl FnMut(Frame<'_>)) -> Result<bool> {
        let mut complete = true;
        while sys::readable(&[self.fd.as_fd()], Duration::ZERO).map_err(|source| self.wait_error(source))?[0]
        {
            match sys::receive(self.fd.as_fd(), &mut self.buffer) {
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => complete = false,
                other => {
                    let length = other.map_err(|source| self.wait_error(source))?;
                    Frames::new(&self.buffer[..length]).for_each(&mut each);
                }
            }
        }
        Ok(complete)
    }

    /// Sends one message without waiting for the answer; returns its sequence number.
    fn send(&mut self, mut message: Message, flags: u16) -> Result<u32> {
        self.seq += 1;
        message.seal(flags, self.seq);
        self.write(&message.bytes, &message.doing)?;
        Ok(self.seq)
    }

    /// The number of send and receive system calls so far.
    pub fn calls(&self) -> u64 {
        self.calls
    }

    fn write(&mut self, bytes: &[u8], doing: &str) -> Result<()> {
        self.calls += 1;
        sys::send(self.fd.as_fd(), bytes).map_err(|source| Error::Io { doing: doing.into(), source })
    }

    fn read(&mut self, doing: &str) -> Result<usize> {
        self.calls += 1;
        sys::receive(self.fd.as_fd(), &mut self.buffer)
            .map_err(|source| Error::Io { doing: doing.into(), source })
    }

    fn wait_error(&self, source: io::Error) -> Error {
        Error::Io { doing: "wait for kernel notices".into(), source }
    }

    /// Reads answers until request `seq` is finished. Returns whether a dump is consistent.
    fn receive(&mut self, seq: u32, doing: &str, mut each: impl FnMut(Frame<'_>)) -> Result<bool> {
        let mut is_consistent = true;
        loop {
            let length = self.read(doing)?;
            for frame in Frames::new(&self.buffer[..length]) {
                if frame.seq != seq {
                    continue;
                }
                // The flag may be set only in the last message.
                is_consistent &= frame.flags & F_DUMP_INTR == 0;
                match frame.kind {
                    NLMSG_ERROR => return acknowledged(&frame, doing).map(|()| is_consistent),
                    NLMSG_DONE => return finished(&frame, doing).map(|()| is_consistent),
                    _ => each(frame),
                }
            }
        }
    }
}

impl From<OwnedFd> for Socket {
    /// Wraps an open socket, such as one end of a pair in a test that simulates the kernel.
    fn from(fd: OwnedFd) -> Socket {
        Socket { fd, seq: 0, buffer: vec![0; BUFFER], calls: 0 }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Decodes `struct nlmsgerr`: errno (0 is success), the request's header, attributes.
fn acknowledged(frame: &Frame<'_>, doing: &str) -> Result<()> {
    let Some(head) = frame.body.get(..4) else {
        return Err(Error::Malformed { doing: doing.into(), reason: "truncated acknowledgement".into() });
    };
    let errno = -i32::from_ne_bytes([head[0], head[1], head[2], head[3]]);
    if errno == 0 {
        return Ok(());
    }
    // The request's header follows, and its body unless the ack is capped.
    let request = frame.body.get(4..8).map_or(0, |b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]) as usize);
    let skip = 4 + if frame.flags & F_CAPPED != 0 { HEADER } else { request.max(HEADER) };
    let note = (frame.flags & F_ACK_TLVS != 0)
        .then(|| frame.attrs(skip).find(|a| a.kind == NLMSGERR_ATTR_MSG).map(|a| a.string()))
        .flatten();
    Err(Error::Refused { doing: doing.into(), errno, note })
}

/// Decodes the end of a dump, which contains an errno too.
fn finished(frame: &Frame<'_>, doing: &str) -> Result<()> {
    let Some(head) = frame.body.get(..4) else { return Ok(()) };
    match i32::from_ne_bytes([head[0], head[1], head[2], head[3]]) {
        0.. => Ok(()),
        negative => {
            let note = frame.attrs(4).find(|a| a.kind == NLMSGERR_ATTR_MSG).map(|a| a.string());
            Err(Error::Refused { doing: doing.into(), errno: -negative, note })
        }
    }
}
