//! TAP: a device whose wire is a file descriptor. Whoever opens it (a virtual machine, as a rule) reads the frames that
//! are sent through it and writes those that arrive. The device stays when nobody has it open.

use podwire_netlink::rt::link::{self, attribute as a, Link};
use podwire_netlink::sys::{self, TapSpec};
use podwire_netlink::Batch;

use crate::{Error, Host, Mac, Owner, Result};

/// The driver's name of TUN and TAP devices.
pub const KIND: &str = "tun";
/// What it tells of a device that belongs to nobody (`-1` as a user's or group's number).
const NOBODY: u32 = u32::MAX;

/// What a TAP device is to be like.
#[derive(Clone, Debug)]
pub struct Tap<'a> {
    /// Its name.
    pub name: &'a str,
    /// Whose it is, noted as its alias.
    pub owner: &'a Owner,
    /// Who may open it, and how.
    pub access: Access<'a>,
    /// Its MTU; 0 is the kernel's choice.
    pub mtu: u32,
    /// Its hardware address, random if not given.
    pub mac: Option<Mac>,
    /// The index of the bridge that it becomes a port of.
    pub bridge: Option<u32>,
}

/// Who may open a TAP device, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access<'a> {
    /// By several at a time, each with a queue.
    pub multi_queue: bool,
    /// A user who needs no privileges for it.
    pub user: Option<u32>,
    /// A group that needs none.
    pub group: Option<u32>,
    /// The security context (SELinux) in which it is made.
    pub label: Option<&'a str>,
}

impl Access<'_> {
    /// What of these `link` does not have. (The kernel does not tell a device's security context.)
    pub fn differences(&self, link: &Link) -> Vec<String> {
        let number =
            |kind| link.setting(kind).and_then(|value| value.u32()).filter(|number| *number != NOBODY);
        let yes = |kind| link.setting(kind).and_then(|value| value.u8()) == Some(1);
        let mut all = Vec::new();
        for (what, kind, wanted) in [("owner", a::TUN_OWNER, self.user), ("group", a::TUN_GROUP, self.group)]
        {
            let found = number(kind);
            if found != wanted {
                let name = |number: Option<u32>| number.map_or("nobody".into(), |number| number.to_string());
                all.push(format!("its {what} is {}, not {}", name(found), name(wanted)));
            }
        }
        if yes(a::TUN_MULTI_QUEUE) != self.multi_queue {
            all.push(format!("it has {} queue", if self.multi_queue { "one" } else { "more than one" }));
        }
        if !yes(a::TUN_PERSIST) {
            all.push("it goes when it is closed".into());
        }
        all
    }
}

impl Tap<'_> {
    /// Makes the device, down, in `pod`.
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
        let finished = self.finish(pod);
        if finished.is_err() {
            remove(pod, self.name);
        }
        finished
    }

    fn finish(&self, pod: &mut Host) -> Result<Link> {
        let born = pod.get_link(self.name)?;
        let mut batch = Batch::new();
        batch.push(
            link::change(born.index, format!("set up TAP device {}", self.name))
                .string(a::IFALIAS, &self.owner.comment())
                .maybe((self.mtu > 0).then_some(self.mtu), |m, mtu| m.u32(a::MTU, mtu))
                .maybe(self.mac, |m, mac| m.bytes(a::ADDRESS, &mac.0))
                .maybe(self.bridge, |m, bridge| m.u32(a::MASTER, bridge)),
        );
        pod.route.batch(batch)?;
        pod.get_link(self.name)
    }
}

/// Deletes the TAP device `name`, if it is there: to take back a creation.
pub fn remove(pod: &mut Host, name: &str) {
    if let Ok(Some(link)) = pod.find_link(name) {
        // Whoever takes back has a better error to tell.
        let _ = pod.route.request(link::delete(&link));
    }
}
