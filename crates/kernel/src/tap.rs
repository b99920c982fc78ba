//! TAP devices: a program that opens the device, such as a virtual machine, reads the frames that are sent through it
//! and writes the frames that it receives. The device is persistent: it stays when no program has it open.

use podwire_netlink::rt::link::{self, attribute as a, Link};
use podwire_netlink::sys::{self, TapSpec};
use podwire_netlink::Batch;

use crate::error::{Error, Result};
use crate::host::Host;
use crate::mac::Mac;
use crate::owner::Owner;

/// The driver name of TUN and TAP devices.
pub const KIND: &str = "tun";
/// The UID or GID (`-1`) of a device without an owner or group.
const UNSET: u32 = u32::MAX;

/// A TAP device to create.
#[derive(Clone, Debug)]
pub struct Tap<'a> {
    /// Its name.
    pub name: &'a str,
    /// The owner, set as its alias.
    pub owner: &'a Owner,
    /// Who may open it.
    pub access: Access<'a>,
    /// Its MTU; 0 is the kernel's default.
    pub mtu: u32,
    /// Its hardware address, random if not given.
    pub mac: Option<Mac>,
    /// The index of the bridge that it joins.
    pub bridge: Option<u32>,
}

/// Who may open a TAP device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access<'a> {
    /// Whether several openers each get a queue.
    pub multi_queue: bool,
    /// The UID that needs no privileges.
    pub user: Option<u32>,
    /// The GID that needs no privileges.
    pub group: Option<u32>,
    /// The SELinux context of the device.
    pub label: Option<&'a str>,
}

impl Access<'_> {
    /// The settings that `link` does not have, as texts. The kernel does not report the SELinux context.
    pub fn differences(&self, link: &Link) -> Vec<String> {
        let number =
            |kind| link.setting(kind).and_then(|value| value.u32()).filter(|number| *number != UNSET);
        let is_set = |kind| link.setting(kind).and_then(|value| value.u8()) == Some(1);
        let mut all = Vec::new();
        for (what, kind, wanted) in [("owner", a::TUN_OWNER, self.user), ("group", a::TUN_GROUP, self.group)]
        {
            let found = number(kind);
            if found != wanted {
                let name = |number: Option<u32>| number.map_or("unset".into(), |number| number.to_string());
                all.push(format!("its {what} is {}, not {}", name(found), name(wanted)));
            }
        }
        if is_set(a::TUN_MULTI_QUEUE) != self.multi_queue {
            all.push(format!("it has {} queue", if self.multi_queue { "one" } else { "more than one" }));
        }
        if !is_set(a::TUN_PERSIST) {
            all.push("it is not persistent".into());
        }
        all
    }
}

impl Tap<'_> {
    /// Creates the device in `pod`, down.
    pub fn create(&self, pod: &mut Host) -> Result<Link> {
        let spec = TapSpec {
            name: self.name,
            multi_queue: self.access.multi_queue,
            owner: self.access.user,
            group: self.access.group,
            label: self.access.label,
        };
        pod.run(|| sys::create_tap(&spec))?.map_err(|(step, source)| Error::Tap {
            name: self.name.into(),
            step,
            source,
        })?;
        let configured = self.configure(pod);
        if configured.is_err() {
            remove(pod, self.name);
        }
        configured
    }

    fn configure(&self, pod: &mut Host) -> Result<Link> {
        let created = pod.get_link(self.name)?;
        let mut batch = Batch::new();
        batch.push(
            link::change(created.index, format!("configure TAP device {}", self.name))
                .string(a::IFALIAS, &self.owner.comment())
                .maybe((self.mtu > 0).then_some(self.mtu), |m, mtu| m.u32(a::MTU, mtu))
                .maybe(self.mac, |m, mac| m.bytes(a::ADDRESS, &mac.0))
                .maybe(self.bridge, |m, bridge| m.u32(a::MASTER, bridge)),
        );
        pod.route.batch(batch)?;
        pod.get_link(self.name)
    }
}

/// Deletes the TAP device `name`, if it exists, to revert its creation.
pub fn remove(pod: &mut Host, name: &str) {
    if let Ok(Some(link)) = pod.find_link(name) {
        // The caller reports the error that made this necessary.
        let _ = pod.route.request(link::delete(&link));
    }
}
