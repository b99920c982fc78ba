//! An attachment and its leases: one by DHCPv4, one by DHCPv6, or both.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use podwire_agent_ipc::dhcp::{Families, LeaseOptions};
use podwire_agent_ipc::Owner;
use podwire_kernel::rt;
use podwire_netlink::{sys, Socket};
use serde_json::Value;

use crate::dialect::Dialect;
use crate::grant::{self, Grant, Held, Moment};
use crate::interface::{identity, Interface};
use crate::journal;
use crate::machine::{Action, Machine};
use crate::pace::Dice;
use crate::record::Record;
use crate::wire::{self, Wire};
use crate::{v4, v6, Error, Result};

/// A link that does not say within this time that it is up may be one that never does.
const WAKING: Duration = Duration::from_secs(1);
const GROUP_IPV6_ADDRESS: u32 = 9; // RTNLGRP_IPV6_IFADDR, linux/rtnetlink.h
/// The longest client identifier, without its type.
const LONGEST_ID: usize = 254;

/// How the daemon was told to work.
#[derive(Clone, Debug)]
pub(crate) struct Manner {
    /// Before the path of every namespace.
    pub(crate) prefix: PathBuf,
    /// The longest wait between two tries.
    pub(crate) longest: Duration,
    /// The name of this life of the machine.
    pub(crate) boot: String,
}

/// An attachment.
#[derive(Debug)]
pub(crate) struct Tenant {
    record: Record,
    manner: Manner,
    lines: Vec<Line>,
    /// The kernel's notices, while the link comes up for the first time, and until when.
    waking: Option<(Socket, Moment)>,
    /// Somebody else puts addresses on the interface: the plugin that waits for them.
    pub(crate) is_new: bool,
    /// What is on the disk is not what is so.
    pub(crate) is_changed: bool,
}

#[derive(Debug)]
struct Line {
    machine: Machine,
    wire: Option<Wire>,
}

impl Tenant {
    /// Begins to look for what `wish` asks for.
    pub(crate) fn begin(owner: Owner, netns: &Path, wish: LeaseOptions, manner: Manner) -> Result<Tenant> {
        let path = outside(&manner, netns);
        let missing = || Error::Gone(format!("failed to open netns {path:?}: no such file or directory"));
        let namespace = identity(&path).ok_or_else(missing)?;
        let found = Interface::find(&path, &owner.ifname)?;
        let strange =
            |_| Error::Other(format!("{} has no Ethernet address, and DHCP needs one", found.link.name));
        let mac = <[u8; 6]>::try_from(found.link.mac.as_slice()).map_err(strange)?;
        let (netns, boot, held) = (netns.to_owned(), manner.boot.clone(), Vec::new());
        let record = Record { owner, netns, namespace, mac, wish, boot, held };
        let mut tenant = Tenant::of(record, manner)?;
        tenant.is_new = true;
        tenant.wake()?;
        Ok(tenant)
    }

    /// Goes on with what an earlier life of the daemon acquired.
    pub(crate) fn resume(record: Record, manner: Manner) -> Result<Tenant> {
        let held = record.held.clone();
        let mut tenant = Tenant::of(record, manner)?;
        tenant.find()?;
        let now = sys::since_boot();
        for at in 0..tenant.lines.len() {
            let line = &mut tenant.lines[at];
            let actions = match own(&held, line) {
                Some(held) => line.machine.resume(held.clone(), now),
                None => line.machine.begin(now),
            };
            tenant.perform(at, actions)?;
        }
        Ok(tenant)
    }

    /// As it was, to give it back.
    pub(crate) fn remember(record: Record, manner: Manner) -> Result<Tenant> {
        let held = record.held.clone();
        let mut tenant = Tenant::of(record, manner)?;
        for line in &mut tenant.lines {
            if let Some(held) = own(&held, line) {
                // At its beginning a lease wants nothing.
                line.machine.resume(held.clone(), held.since);
            }
        }
        Ok(tenant)
    }

    fn of(record: Record, manner: Manner) -> Result<Tenant> {
        let mut lines = Vec::new();
        for dialect in dialects(&record) {
            let seed = sys::random::<8>().map_err(Error::io("get random numbers"))?;
            let dice = Dice::seeded(u64::from_ne_bytes(seed));
            lines.push(Line { machine: Machine::new(dialect, dice, manner.longest), wire: None });
        }
        Ok(Tenant { record, manner, lines, waking: None, is_new: false, is_changed: false })
    }

    /// Brings the link up. What is sent before the other end is ready is lost, so that is waited for.
    fn wake(&mut self) -> Result<()> {
        let v6 = self.speaks_v6();
        let mut interface = self.find()?;
        let mut notices = interface.pod.run(Socket::route)??;
        notices.subscribe(rt::GROUP_LINK)?;
        notices.subscribe(GROUP_IPV6_ADDRESS)?;
        interface.wake(v6)?;
        let now = sys::since_boot();
        self.waking = Some((notices, now + WAKING));
        self.look(now)
    }

    /// Begins to speak if the link is awake, or does not seem to be going to.
    fn look(&mut self, now: Moment) -> Result<()> {
        let Some((_, until)) = &self.waking else { return Ok(()) };
        if *until > now && !self.find()?.is_awake(self.speaks_v6())? {
            return Ok(());
        }
        self.waking = None;
        for at in 0..self.lines.len() {
            let actions = self.lines[at].machine.begin(now);
            self.perform(at, actions)?;
        }
        Ok(())
    }

    fn speaks_v6(&self) -> bool {
        self.record.wish.families != Families::Ipv4
    }

    fn find(&self) -> Result<Interface> {
        let path = outside(&self.manner, &self.record.netns);
        if identity(&path) != Some(self.record.namespace) {
            return Err(Error::Gone(format!("the pod of {path:?} is gone")));
        }
        Interface::find(&path, &self.record.owner.ifname)
    }

    /// Whose it is.
    pub(crate) fn owner(&self) -> &Owner {
        &self.record.owner
    }

    /// When something is to be done.
    pub(crate) fn due(&self) -> Option<Moment> {
        let lines = self.lines.iter().filter_map(|line| line.machine.due());
        lines.chain(self.waking.as_ref().map(|(_, until)| *until)).min()
    }

    /// What it waits for: the wires that are open, by number, and the kernel's notices.
    pub(crate) fn wires(&self) -> impl Iterator<Item = (usize, &Wire)> {
        self.lines.iter().enumerate().filter_map(|(at, line)| Some((at, line.wire.as_ref()?)))
    }

    /// The kernel's notices.
    pub(crate) fn notices(&self) -> Option<&Socket> {
        self.waking.as_ref().map(|(notices, _)| notices)
    }

    /// The kernel has something to tell about the link.
    pub(crate) fn noticed(&mut self) -> Result<()> {
        if let Some((notices, _)) = &mut self.waking {
            // What it is does not matter: the state itself is looked at.
            notices.notice(Duration::ZERO, |_| None::<()>)?;
        }
        self.look(sys::since_boot())
    }

    /// Time has passed.
    pub(crate) fn tick(&mut self, now: Moment) -> Result<()> {
        if self.waking.as_ref().is_some_and(|(_, until)| *until <= now) {
            self.look(now)?;
        }
        for at in 0..self.lines.len() {
            let actions = self.lines[at].machine.tick(now);
            self.perform(at, actions)?;
        }
        Ok(())
    }

    /// Something came over a wire.
    pub(crate) fn hear(&mut self, at: usize) -> Result<()> {
        let Some(line) = self.lines.get_mut(at) else { return Ok(()) };
        let received = line.wire.as_ref().map_or(Ok(None), Wire::receive);
        match received {
            Ok(None) => Ok(()),
            Ok(Some(message)) => {
                let actions = line.machine.hear(&message.bytes, message.from, sys::since_boot());
                self.perform(at, actions)
            }
            // The link went down, or away; the next message finds out which.
            Err(_) => {
                line.wire = None;
                Ok(())
            }
        }
    }

    fn perform(&mut self, at: usize, actions: Vec<Action>) -> Result<()> {
        for action in actions {
            match action {
                Action::Shout(message) => self.send(at, |wire| wire.shout(&message))?,
                Action::Tell(message, grant) => self.send(at, |wire| wire.tell(&message, &grant))?,
                Action::Install { old, new } => self.install(old.as_deref(), &new)?,
                Action::Withdraw(grant) => self.withdraw(at, &grant)?,
            }
        }
        let line = &mut self.lines[at];
        if !line.machine.listens() {
            line.wire = None;
        }
        Ok(())
    }

    /// What cannot be sent now is lost like so much on the way; it will be said again. A pod that is gone is another matter.
    fn send(&mut self, at: usize, send: impl Fn(&Wire) -> Result<()>) -> Result<()> {
        let outcome = self.connected(at).and_then(send);
        match outcome {
            Err(error) if error.is_gone() => Err(error),
            Err(error) => {
                self.lines[at].wire = None;
                journal::note("unsent", self.owner(), format_args!("error=\"{error}\""));
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    fn connected(&mut self, at: usize) -> Result<&Wire> {
        // Also when there is a wire: the interface may be gone, and nobody may speak for it then.
        let mut interface = self.find()?;
        let line = &mut self.lines[at];
        let v4 = line.machine.dialect().is_v4();
        interface.wake(!v4)?;
        let held = line.machine.held().and_then(|held| match held.grant.address.addr() {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        });
        if line.wire.is_none() {
            line.wire = Some(match v4 {
                true => Wire::v4(&interface.pod, &interface.link, held)?,
                false => Wire::v6(&mut interface.pod, &interface.link)?,
            });
        }
        line.wire.as_ref().ok_or_else(|| Error::Other("there is no wire".into()))
    }

    fn install(&mut self, old: Option<&Grant>, new: &Grant) -> Result<()> {
        self.is_changed = true;
        let mut interface = self.find()?;
        let applied = match self.is_new {
            true => interface.resize(new.mtu),
            false => interface.apply(old, new, self.record.wish.route_priority),
        };
        // What a server asks for and the kernel does not take is no reason to give the lease up.
        if let Err(error) = applied {
            journal::note("unapplied", self.owner(), format_args!("error=\"{error}\""));
        }
        let event = if old.is_some() { "renewed" } else { "bound" };
        let fields = format_args!("address={} seconds={}", new.address, new.times.end);
        journal::note(event, self.owner(), fields);
        Ok(())
    }

    fn withdraw(&mut self, at: usize, grant: &Grant) -> Result<()> {
        self.is_changed = true;
        self.lines[at].wire = None;
        // The other family may have an address still.
        let alone = self.lines.iter().all(|line| line.machine.held().is_none());
        self.find()?.withdraw(grant, self.record.wish.route_priority, alone)?;
        journal::note("lost", self.owner(), format_args!("address={}", grant.address));
        Ok(())
    }

    fn grants(&self) -> Vec<&Grant> {
        self.lines.iter().filter_map(|line| Some(&line.machine.held()?.grant)).collect()
    }

    /// The result, once every lease is there.
    pub(crate) fn result(&self) -> Option<Value> {
        let grants = self.grants();
        if grants.len() < self.lines.len() {
            return None;
        }
        grant::result(&grants, self.record.wish.route_priority).ok()
    }

    /// Why there is no lease, if there is anything to say about it.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.lines.iter().find_map(|line| line.machine.trouble()).map(String::from)
    }

    /// What is to be on the disk.
    pub(crate) fn record(&self) -> Record {
        let held = self.lines.iter().filter_map(|line| line.machine.held().cloned()).collect();
        Record { held, ..self.record.clone() }
    }

    /// Gives everything back. A pod that is gone cannot tell; for DHCPv4 the node can, if the server is within its reach.
    pub(crate) fn release(mut self) {
        for at in 0..self.lines.len() {
            let told = match self.lines[at].machine.release() {
                None => continue,
                Some(Action::Tell(message, grant)) => match self.connected(at) {
                    Ok(wire) => wire.tell(&message, &grant),
                    Err(error) if error.is_gone() => wire::tell_from_here(&message, &grant),
                    Err(error) => Err(error),
                },
                Some(Action::Shout(message)) => self.connected(at).and_then(|wire| wire.shout(&message)),
                Some(_) => Ok(()),
            };
            match told {
                Ok(()) => journal::note("released", self.owner(), ""),
                Err(error) => journal::note("unreleased", self.owner(), format_args!("error=\"{error}\"")),
            }
        }
    }
}

/// The lease of a line's family.
fn own<'a>(held: &'a [Held], line: &Line) -> Option<&'a Held> {
    held.iter().find(|held| held.grant.address.addr().is_ipv4() == line.machine.dialect().is_v4())
}

/// A path of the node as this process sees it.
fn outside(manner: &Manner, path: &Path) -> PathBuf {
    match manner.prefix.as_os_str().is_empty() {
        true => path.to_owned(),
        false => manner.prefix.join(path.strip_prefix("/").unwrap_or(path)),
    }
}

/// Who the attachment is in each protocol that it wants to speak.
fn dialects(record: &Record) -> Vec<Dialect> {
    let Record { owner, wish, mac, .. } = record;
    let name = format!("{}/{}/{}", owner.container, owner.network, owner.ifname);
    let before = |v4: bool| wish.previous_addresses.iter().copied().find(|ip| ip.is_ipv4() == v4);
    let v4 = || {
        let cut = &name.as_bytes()[..name.len().min(LONGEST_ID)];
        let before = match before(true) {
            Some(IpAddr::V4(ip)) => Some(ip),
            _ => None,
        };
        let (requested, provided) = (wish.requested.clone(), wish.provided.clone());
        Dialect::V4(v4::Client { mac: *mac, id: [&[0], cut].concat(), requested, provided, before })
    };
    let v6 = || {
        let before = match before(false) {
            Some(IpAddr::V6(ip)) => Some(ip),
            _ => None,
        };
        Dialect::V6(v6::Client { before, ..v6::Client::named(&name) })
    };
    match wish.families {
        Families::Ipv4 => vec![v4()],
        Families::Ipv6 => vec![v6()],
        Families::Dual => vec![v4(), v6()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(container: &str, family: Families) -> Record {
        Record {
            owner: Owner { network: "lan".into(), container: container.into(), ifname: "eth0".into() },
            netns: PathBuf::new(),
            namespace: [0, 0],
            mac: [2, 0, 0, 0, 0, 7],
            wish: LeaseOptions { families: family, ..LeaseOptions::default() },
            boot: String::new(),
            held: Vec::new(),
        }
    }

    #[test]
    fn the_identifier_is_that_of_the_go_plugin_and_fits() {
        let id = |container: &str| match &dialects(&record(container, Families::Ipv4))[..] {
            [Dialect::V4(client)] => client.id.clone(),
            other => panic!("{other:?}"),
        };
        assert_eq!(id("c1"), b"\0c1/lan/eth0");
        assert_eq!(id(&"c".repeat(300)).len(), 255);
    }

    #[test]
    fn both_families_are_two_lines() {
        assert_eq!(dialects(&record("c1", Families::Dual)).len(), 2);
        assert!(!dialects(&record("c1", Families::Ipv6))[0].is_v4());
    }

    #[test]
    fn the_prefix_stands_before_paths_of_the_node() {
        let manner =
            |prefix: &str| Manner { prefix: prefix.into(), longest: Duration::ZERO, boot: String::new() };
        assert_eq!(outside(&manner("/host"), Path::new("/run/netns/a")), Path::new("/host/run/netns/a"));
        assert_eq!(outside(&manner(""), Path::new("/run/netns/a")), Path::new("/run/netns/a"));
    }
}
