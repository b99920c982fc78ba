//! VRF: a routing table of its own for some of the links. Packets that come in through them, or leave by them, are
//! routed by that table and by no other.

use podwire_netlink::rt::link::{self, attribute as a, Link};
use podwire_netlink::{Batch, Message};

use crate::{Error, Host, Result};

/// The driver's name.
pub const KIND: &str = "vrf";

/// Makes a VRF, up, that routes by `table`.
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

/// The VRF `name`, if there is one; something else of that name is an error.
pub fn find(host: &mut Host, name: &str) -> Result<Option<Link>> {
    match host.find_link(name)? {
        Some(other) if other.kind != KIND => {
            Err(Error::WrongKind { name: name.into(), wanted: "VRF", found: other.kind })
        }
        found => Ok(found),
    }
}

/// The table that a VRF routes by; `None` for any other link.
pub fn table(link: &Link) -> Option<u32> {
    link.setting(a::VRF_TABLE).filter(|_| link.kind == KIND)?.u32()
}

/// Puts a link into a VRF, or out of it with `None`. The kernel takes it down and up again for that.
pub fn assign(host: &mut Host, link: &Link, vrf: Option<&Link>) -> Result<()> {
    let doing = match vrf {
        Some(vrf) => format!("put {} into VRF {}", link.name, vrf.name),
        None => format!("take {} out of its VRF", link.name),
    };
    let mut batch = Batch::new();
    batch.push(link::change(link.index, doing).u32(a::MASTER, vrf.map_or(0, |vrf| vrf.index)));
    Ok(host.route.batch(batch)?)
}

/// Whether the kernel has VRFs. Found out in a namespace that nobody else ever sees.
pub fn is_supported() -> Result<bool> {
    let try_one = || -> Result<bool> {
        podwire_netlink::sys::new_network_namespace()
            .map_err(|error| Error::Other(format!("make a namespace: {error}")))?;
        match create(&mut Host::here()?, "probe", 100) {
            Err(Error::Netlink(error)) if error.is_unsupported() => Ok(false),
            other => other.map(|_| true),
        }
    };
    std::thread::scope(|scope| scope.spawn(try_one).join())
        .unwrap_or_else(|_| Err(Error::Other("the thread panicked".into())))
}
