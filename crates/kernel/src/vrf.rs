//! VRF: a separate routing table for some links. Packets that arrive or leave on them are routed only by that table.

use podwire_netlink::rt::link::{self, attribute as a, Link};
use podwire_netlink::{Batch, Message};

use crate::error::{Error, Result};
use crate::host::Host;

/// The driver name.
pub const KIND: &str = "vrf";

/// Creates a VRF for `table`, up.
pub fn create(host: &mut Host, name: &str, table: u32) -> Result<Link> {
    let create = Message::new(libc::RTM_NEWLINK, podwire_netlink::rt::CREATE, format!("create VRF {name}"))
        .raw(&link::header(0, link::UP, link::UP))
        .string(a::IFNAME, name)
        .nest(a::LINKINFO, |m| {
            m.string(a::INFO_KIND, KIND).nest(a::INFO_DATA, |m| m.u32(a::VRF_TABLE, table))
        });
    host.route.request(create)?;
    host.get_link(name)
}

/// The VRF `name`, if it exists; a link of another kind is an error.
pub fn find(host: &mut Host, name: &str) -> Result<Option<Link>> {
    match host.find_link(name)? {
        Some(other) if other.kind != KIND => {
            Err(Error::WrongKind { name: name.into(), wanted: "VRF", found: other.kind })
        }
        found => Ok(found),
    }
}

/// The table of a VRF; `None` for other links.
pub fn table(link: &Link) -> Option<u32> {
    link.setting(a::VRF_TABLE).filter(|_| link.kind == KIND)?.u32()
}

/// Adds a link to a VRF, or removes it with `None`. The kernel takes the link down and up again.
pub fn assign(host: &mut Host, link: &Link, vrf: Option<&Link>) -> Result<()> {
    let doing = match vrf {
        Some(vrf) => format!("add {} to VRF {}", link.name, vrf.name),
        None => format!("remove {} from its VRF", link.name),
    };
    let mut batch = Batch::new();
    batch.push(link::change(link.index, doing).u32(a::MASTER, vrf.map_or(0, |vrf| vrf.index)));
    Ok(host.route.batch(batch)?)
}

/// Whether the kernel supports VRFs. Tries it in a new namespace of a separate thread.
pub fn is_supported() -> Result<bool> {
    let try_one = || -> Result<bool> {
        podwire_netlink::sys::new_network_namespace()
            .map_err(|error| Error::Other(format!("create a namespace: {error}")))?;
        match create(&mut Host::here()?, "probe", 100) {
            Err(Error::Netlink(error)) if error.is_unsupported() => Ok(false),
            other => other.map(|_| true),
        }
    };
    std::thread::scope(|scope| scope.spawn(try_one).join())
        .unwrap_or_else(|_| Err(Error::Other("the thread panicked".into())))
}
