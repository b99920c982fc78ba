//! ifb: a device that gives back what is sent into it. Incoming packets can be queued only if they leave
//! somewhere first; this is where.

use podwire_netlink::rt::link::{self, attribute as a, Link};
use podwire_netlink::{Batch, Message};

use crate::{Host, Owner, Result};

/// Makes an ifb device, up. Its owner is noted in the same send: a process that
/// is killed leaves either no device or a signed one.
pub fn create(host: &mut Host, name: &str, mtu: u32, owner: &Owner) -> Result<Link> {
    let create =
        Message::new(libc::RTM_NEWLINK, podwire_netlink::rt::CREATE, format!("create ifb device {name}"))
            .raw(&link::header(0, link::UP, link::UP))
            .string(a::IFNAME, name)
            .u32(a::MTU, mtu)
            .nest(a::LINKINFO, |m| m.string(a::INFO_KIND, "ifb"));
    let sign = Message::new(libc::RTM_SETLINK, 0, format!("note the owner on {name}"))
        .raw(&link::header(0, 0, 0))
        .string(a::IFNAME, name)
        .string(a::IFALIAS, &owner.comment());
    let mut batch = Batch::new();
    batch.extend([create, sign]);
    host.route.batch(batch)?;
    host.get_link(name)
}
