//! Handing a device from one namespace to another. Everything else is born where it will live; a device of the
//! machine's own can only be moved.

use std::os::fd::{AsFd, AsRawFd};

use podwire_netlink::rt::link::{self, attribute as a, Link};

use crate::{Host, Netns, Result};

/// Moves `link` into the namespace `to`, where it is down and called `name`, with `note` as its alias: one message.
/// `name` may end in `%d`, for which the kernel puts the first free number.
///
/// The kernel moves first and renames then: if `name` is taken where the device goes to, it may be there under its old
/// name. So ask first.
pub fn hand_over(from: &mut Host, link: &Link, to: &Netns, (name, note): (&str, &str)) -> Result<()> {
    let doing = format!("move {} as {name} to {}", link.name, to.path().display());
    let message = link::set_flags(link.index, 0, link::UP, doing)
        .u32(a::NET_NS_FD, to.as_fd().as_raw_fd() as u32)
        .string(a::IFNAME, name)
        // Without its final NUL: an alias of no bytes is none.
        .bytes(a::IFALIAS, note.as_bytes());
    Ok(from.route.request(message)?)
}
