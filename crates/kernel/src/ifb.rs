//! ifb: a device that re-injects the packets sent through it. Only outgoing packets can be queued, so incoming packets
//! are redirected through an ifb to be shaped.

use podwire_netlink::rt::link::{self, attribute as a, Link};
use podwire_netlink::{Batch, Message};

use crate::error::Result;
use crate::host::Host;
use crate::owner::Owner;

/// Creates an ifb device, up. The owner is set in the same send: a killed process leaves either no device or one with
/// an owner.
pub fn create(host: &mut Host, name: &str, mtu: u32, owner: &Owner) -> Result<Link> {
    let create =
        Message::new(libc::RTM_NEWLINK, podwire_netlink::rt::CREATE, format!("create ifb device {name}"))
            .raw(&link::header(0, link::UP, link::UP))
            .string(a::IFNAME, name)
            .u32(a::MTU, mtu)
            .nest(a::LINKINFO, |m| m.string(a::INFO_KIND, "ifb"));
    let set_owner = Message::new(libc::RTM_SETLINK, 0, format!("set the owner of {name}"))
        .raw(&link::header(0, 0, 0))
        .string(a::IFNAME, name)
        .string(a::IFALIAS, &owner.comment());
    let mut batch = Batch::new();
    batch.extend([create, set_owner]);
    host.route.batch(batch)?;
    host.get_link(name)
}
