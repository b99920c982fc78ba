//! Netlink, ICMP and unix sockets, and their options.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

use podwire_ip::IpFamily;

use super::call::{check, uninterrupted};

/// Opens a raw netlink socket (close-on-exec).
pub fn netlink_socket(protocol: i32) -> io::Result<OwnedFd> {
    // SAFETY: socket(2) takes numbers only.
    let fd = check(
        unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol) }.into(),
    )?;
    // SAFETY: the descriptor was just returned to us and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Binds a netlink socket to a port that the kernel chooses. The first send would do the same.
pub fn bind_netlink(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: an all-zero sockaddr_nl is a valid value of a plain C struct.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    let size = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
    // SAFETY: the pointer and the length describe `address`, which lives through the call.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size) }.into()).map(drop)
}

/// Sets a socket option of level `SOL_NETLINK`.
pub fn set_netlink_option(fd: BorrowedFd<'_>, option: i32, value: i32) -> io::Result<()> {
    let size = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the pointer and the length describe `value`, which lives through the call.
    let result = unsafe {
        libc::setsockopt(fd.as_raw_fd(), libc::SOL_NETLINK, option, (&raw const value).cast(), size)
    };
    check(result.into()).map(drop)
}

/// Sets the size of a socket's send buffer, regardless of `net.core.wmem_max` (`SO_SNDBUFFORCE`).
pub fn set_send_buffer(fd: BorrowedFd<'_>, bytes: i32) -> io::Result<()> {
    let size = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the pointer is to an i32 of this frame, and its size is given.
    let result = unsafe {
        let value = (&raw const bytes).cast();
        libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, value, size)
    };
    check(result.into()).map(drop)
}

/// Sends one datagram to the kernel.
pub fn send(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<()> {
    // SAFETY: the pointer and the length describe `bytes`.
    let call =
        || unsafe { libc::send(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) as libc::c_long };
    match uninterrupted(call)? as usize {
        sent if sent == bytes.len() => Ok(()),
        sent => Err(io::Error::other(format!("only {sent} of {} bytes were sent", bytes.len()))),
    }
}

/// Receives one datagram. A datagram that does not fit into `buffer` is an error: it is never truncated.
pub fn receive(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    let (at, room) = (buffer.as_mut_ptr(), buffer.len());
    // SAFETY: the pointer and the length describe `buffer`, which is borrowed mutably.
    let call = || unsafe { libc::recv(fd.as_raw_fd(), at.cast(), room, libc::MSG_TRUNC) as libc::c_long };
    match uninterrupted(call)? as usize {
        length if length <= room => Ok(length),
        length => {
            Err(io::Error::other(format!("datagram of {length} bytes exceeds the buffer of {room} bytes")))
        }
    }
}

/// The index of an interface in the socket's namespace, and its hardware address if that has six bytes. Unlike a
/// netlink request, these two ioctls do not wait for the RTNL lock.
pub fn interface(socket: BorrowedFd<'_>, name: &str) -> io::Result<(u32, [u8; 6])> {
    // SAFETY: an all-zero ifreq is a valid value of a plain C struct.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The name must leave room for its NUL.
    if name.len() >= request.ifr_name.len() || name.contains('\0') {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    request.ifr_name.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from as libc::c_char);
    let mut request_info = |command: libc::c_ulong| {
        // SAFETY: the kernel reads and writes one ifreq, which outlives the call.
        check(unsafe { libc::ioctl(socket.as_raw_fd(), command as _, &raw mut request) }.into())?;
        Ok::<_, io::Error>(request)
    };
    // SAFETY: SIOCGIFINDEX fills in this union member.
    let index = unsafe { request_info(libc::SIOCGIFINDEX as libc::c_ulong)?.ifr_ifru.ifru_ifindex };
    // SAFETY: SIOCGIFHWADDR fills in this union member.
    let address = unsafe { request_info(libc::SIOCGIFHWADDR as libc::c_ulong)?.ifr_ifru.ifru_hwaddr.sa_data };
    let bytes = std::array::from_fn(|at| address[at] as u8);
    Ok((u32::try_from(index).unwrap_or_default(), bytes))
}

/// The name of an interface in the namespace of the calling thread. Unlike a netlink request, it does not wait for the
/// RTNL lock.
pub fn interface_name(index: u32) -> io::Result<String> {
    let mut name = [0 as libc::c_char; libc::IF_NAMESIZE];
    // SAFETY: the buffer has the size that if_indextoname(3) requires, and is borrowed mutably.
    if unsafe { libc::if_indextoname(index, name.as_mut_ptr()) }.is_null() {
        return Err(io::Error::last_os_error());
    }
    let bytes: Vec<u8> = name.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8).collect();
    String::from_utf8(bytes).map_err(io::Error::other)
}

/// Opens a raw ICMP or ICMPv6 socket. `std::net::UdpSocket` can send and receive on it.
pub fn icmp_socket(family: IpFamily) -> io::Result<OwnedFd> {
    let (domain, protocol) = match family {
        IpFamily::V4 => (libc::AF_INET, libc::IPPROTO_ICMP),
        IpFamily::V6 => (libc::AF_INET6, libc::IPPROTO_ICMPV6),
    };
    // SAFETY: socket(2) takes numbers only.
    let fd = check(unsafe { libc::socket(domain, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol) }.into())?;
    // SAFETY: the descriptor was just returned to us and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Disables fragmentation for a socket and ignores the cached path MTU: only datagrams that exceed the MTU of the first
/// link are refused.
pub fn disable_fragmentation(fd: BorrowedFd<'_>, family: IpFamily) -> io::Result<()> {
    let (level, option, value) = match family {
        IpFamily::V4 => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE),
        IpFamily::V6 => (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE),
    };
    let size = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the pointer and the length describe `value`, which lives through the call.
    let result = unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, (&raw const value).cast(), size) };
    check(result.into()).map(drop)
}

/// The path MTU to the peer of a connected socket, as far as this host knows it.
pub fn path_mtu(fd: BorrowedFd<'_>, family: IpFamily) -> io::Result<u32> {
    let (level, option) = match family {
        IpFamily::V4 => (libc::IPPROTO_IP, libc::IP_MTU),
        IpFamily::V6 => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
    };
    let (mut value, mut size) = (0i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: both pointers are to variables that are borrowed mutably, and `size` is that of `value`.
    let result =
        unsafe { libc::getsockopt(fd.as_raw_fd(), level, option, (&raw mut value).cast(), &mut size) };
    check(result.into()).map(|_| value.max(0) as u32)
}

/// Connects to a unix stream socket. `timeout` limits the connect, which blocks while the server's backlog is full, and
/// every later write.
pub fn connect_unix(to: &SocketAddr, timeout: Duration) -> io::Result<UnixStream> {
    // SAFETY: an all-zero sockaddr_un is a valid value of a plain C struct.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let name = match (to.as_pathname(), to.as_abstract_name()) {
        (Some(path), _) => [path.as_os_str().as_bytes(), b"\0"].concat(),
        (None, Some(name)) => [&b"\0"[..], name].concat(),
        (None, None) => {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the socket address has no name"))
        }
    };
    address.sun_path.iter_mut().zip(&name).for_each(|(to, from)| *to = *from as libc::c_char);
    // SAFETY: socket(2) takes numbers only.
    let fd = check(unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) }.into())?;
    // SAFETY: the descriptor was just returned to us and has no other owner.
    let stream = UnixStream::from(unsafe { OwnedFd::from_raw_fd(fd as i32) });
    stream.set_write_timeout(Some(timeout))?;
    // The length of the address is also the end of an abstract name, which has no NUL.
    let size = (std::mem::offset_of!(libc::sockaddr_un, sun_path) + name.len()) as libc::socklen_t;
    // SAFETY: the pointer is to `address`, which lives through the call; `SocketAddr` holds only names that fit into
    // it.
    uninterrupted(|| unsafe { libc::connect(stream.as_raw_fd(), (&raw const address).cast(), size).into() })?;
    Ok(stream)
}
