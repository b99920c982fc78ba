//! ifb: a device that gives back what is sent into it. Incoming packets can be queued only if they leave
//! somewhere first; this is where.

use netlink::rt::link::{self, attribute as a, Link};
use netlink::Message;

use crate::{Host, Owner, Result};

/// Makes an ifb device, up, with its owner noted on it; one that is there already is taken as it is.
pub fn ensure(host: &mut Host, name: &str, mtu: u32, owner: &Owner) -> Result<Link> {
    let message = Message::new(libc::RTM_NEWLINK, netlink::rt::CREATE, format!("create ifb device {name}"))
        .raw(&link::header(0, link::UP, link::UP))
        .string(a::IFNAME, name)
        .u32(a::MTU, mtu)
        .nest(a::LINKINFO, |m| m.string(a::INFO_KIND, "ifb"));
    match host.route.request(message) {
        Err(error) if error.is_exists() => {}
        other => other?,
    }
    let made = host.get_link(name)?;
    host.route.request(
        link::change(made.index, format!("note the owner on {name}")).string(a::IFALIAS, &owner.comment()),
    )?;
    Ok(made)
}
