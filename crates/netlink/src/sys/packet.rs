//! Packet sockets (AF_PACKET): UDP datagrams from the IP header on, for the DHCP client.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::call::{check, uninterrupted};

/// A packet from a [`packet_socket`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedPacket {
    /// The number of bytes.
    pub length: usize,
    /// The hardware address of the sender, if it has six bytes.
    pub from: Option<[u8; 6]>,
    /// Whether this host sent it.
    pub outgoing: bool,
}

/// Opens a packet socket on one link of the current namespace. A kernel filter passes only IPv4 packets that are UDP
/// datagrams to `port` and not a later fragment. Packets start at the IP header.
pub fn packet_socket(link: u32, port: u16) -> io::Result<OwnedFd> {
    // Protocol 0: the socket receives nothing until the filter is attached and it is bound.
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: socket(2) takes numbers only.
    let fd = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) }.into())?;
    // SAFETY: the descriptor was just returned to us and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    let mut code = datagrams_to(port);
    let program = libc::sock_fprog { len: code.len() as libc::c_ushort, filter: code.as_mut_ptr() };
    let size = size_of::<libc::sock_fprog>() as libc::socklen_t;
    let (option, value) = (libc::SO_ATTACH_FILTER, (&raw const program).cast());
    // SAFETY: the program's pointer and length describe `code`; both live through the call, which copies them.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, value, size) };
    check(result.into())?;
    let (address, size) = link_address(link, [0; 6]);
    // SAFETY: the pointer and the length describe `address`, which lives through the call.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size) }.into())?;
    Ok(socket)
}

/// A classic BPF program (linux/filter.h) for packets that start at the IP header.
fn datagrams_to(port: u16) -> [libc::sock_filter; 9] {
    let code = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let (load_byte, load_half) = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, libc::BPF_H | libc::BPF_LD);
    [
        code(load_byte, 0, 0, 9), // the protocol
        code(libc::BPF_JMP | libc::BPF_JEQ, 0, 6, libc::IPPROTO_UDP as u32),
        code(load_half | libc::BPF_ABS, 0, 0, 6), // the fragment offset
        code(libc::BPF_JMP | libc::BPF_JSET, 4, 0, 0x1fff),
        code(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, 0, 0, 0), // the length of the IP header
        code(load_half | libc::BPF_IND, 0, 0, 2),                   // the destination port
        code(libc::BPF_JMP | libc::BPF_JEQ, 0, 1, u32::from(port)),
        code(libc::BPF_RET, 0, 0, u32::MAX), // accept the whole packet
        code(libc::BPF_RET, 0, 0, 0),        // drop
    ]
}

/// `struct sockaddr_ll` for IPv4 on a link.
fn link_address(link: u32, to: [u8; 6]) -> (libc::sockaddr_ll, libc::socklen_t) {
    // SAFETY: an all-zero sockaddr_ll is a valid value of a plain C struct.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_IP as u16).to_be();
    address.sll_ifindex = link as i32;
    address.sll_halen = 6;
    address.sll_addr[..6].copy_from_slice(&to);
    (address, size_of::<libc::sockaddr_ll>() as libc::socklen_t)
}

/// Sends an IPv4 packet over a link to a hardware address.
pub fn send_packet(socket: BorrowedFd<'_>, link: u32, to: [u8; 6], packet: &[u8]) -> io::Result<()> {
    let (address, size) = link_address(link, to);
    // SAFETY: the pointers and lengths describe `packet` and `address`, which live through the call.
    let call = || unsafe {
        let (at, length) = (packet.as_ptr().cast(), packet.len());
        libc::sendto(socket.as_raw_fd(), at, length, 0, (&raw const address).cast(), size) as libc::c_long
    };
    uninterrupted(call).map(drop)
}

/// Receives a packet without blocking. A packet that does not fit into `buffer` is truncated.
pub fn receive_packet(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Option<ReceivedPacket>> {
    let (mut address, mut size) = link_address(0, [0; 6]);
    let (at, room) = (buffer.as_mut_ptr(), buffer.len());
    // SAFETY: the pointers and lengths describe `buffer` and `address`, both borrowed mutably.
    let call = || unsafe {
        let from = (&raw mut address).cast();
        libc::recvfrom(socket.as_raw_fd(), at.cast(), room, 0, from, &raw mut size) as libc::c_long
    };
    match uninterrupted(call) {
        Ok(length) => {
            let mut from = [0; 6];
            from.copy_from_slice(&address.sll_addr[..6]);
            Ok(Some(ReceivedPacket {
                length: length as usize,
                from: (address.sll_halen == 6).then_some(from),
                outgoing: address.sll_pkttype == libc::PACKET_OUTGOING,
            }))
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}
