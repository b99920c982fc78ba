//! The tables of iptables-legacy, which only a socket option reads (`linux/netfilter_ipv4/ip_tables.h`).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use podwire_ip::IpFamily;

use super::call::check;

/// What is read of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IptablesQuery {
    /// Its size (`IPT_SO_GET_INFO`).
    Info = 64,
    /// Its rules (`IPT_SO_GET_ENTRIES`).
    Entries = 65,
}

/// Queries a table of iptables-legacy through any socket of the family. `buffer` contains the request; the kernel writes
/// its answer over it. It refuses a buffer of another length than that of the answer.
pub fn query_iptables(
    fd: BorrowedFd<'_>,
    family: IpFamily,
    query: IptablesQuery,
    buffer: &mut [u8],
) -> io::Result<()> {
    let level = match family {
        IpFamily::V4 => libc::SOL_IP,
        IpFamily::V6 => libc::SOL_IPV6,
    };
    let mut length = libc::socklen_t::try_from(buffer.len()).map_err(io::Error::other)?;
    // SAFETY: the pointer and the length describe `buffer`, which is borrowed mutably. Both queries contain no pointers.
    let result = unsafe {
        let answer = buffer.as_mut_ptr().cast();
        libc::getsockopt(fd.as_raw_fd(), level, query as i32, answer, &raw mut length)
    };
    check(result.into()).map(drop)
}
