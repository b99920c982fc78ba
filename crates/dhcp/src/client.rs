//! The DHCP client of one attachment: a DHCPv4 session, a DHCPv6 session, or both.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use podwire_agent_ipc::dhcp::{Families, LeaseOptions};
use podwire_agent_ipc::Owner;
use podwire_ip::IpFamily;
use podwire_kernel::rt;
use podwire_netlink::{sys, Socket};
use serde_json::Value;

use crate::grant::{self, BootTime, Grant, Lease};
use crate::interface::{identity, Interface};
use crate::log;
use crate::machine::{Action, Machine};
use crate::protocol::Protocol;
use crate::record::Record;
use crate::retransmit::{Rng, Waits};
use crate::socket::{self, DhcpSocket};
use crate::{v4, v6, Error, Result};

/// A link that does not report within this time that it is up may never do so.
const LINK_UP_TIMEOUT: Duration = Duration::from_secs(1);
const GROUP_IPV6_ADDRESS: u32 = 9; // RTNLGRP_IPV6_IFADDR, linux/rtnetlink.h
/// The longest client identifier, without its type.
const MAX_ID: usize = 254;

/// The settings of all clients.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    /// Prefix of the path of every namespace.
    pub(crate) host_prefix: PathBuf,
    /// The limits of waits for servers.
    pub(crate) waits: Waits,
    /// The current boot.
    pub(crate) boot_id: String,
}

impl Context {
    /// A path of the host as this process sees it.
    pub(crate) fn host_path(&self, path: &Path) -> PathBuf {
        if self.host_prefix.as_os_str().is_empty() {
            return path.to_owned();
        }
        self.host_prefix.join(path.strip_prefix("/").unwrap_or(path))
    }
}

/// The client of an attachment.
#[derive(Debug)]
pub(crate) struct Client {
    record: Record,
    context: Context,
    sessions: Vec<Session>,
    /// Set while the link comes up for the first time.
    link_up: Option<LinkUpWait>,
    /// The ADD is in progress: the plugin that waits for the lease configures the addresses.
    pub(crate) is_new: bool,
    /// The stored record is out of date.
    pub(crate) is_changed: bool,
}

/// Waiting for the link to come up.
#[derive(Debug)]
struct LinkUpWait {
    /// Link and address events of the pod.
    events: Socket,
    /// When to start anyway.
    deadline: BootTime,
}

#[derive(Debug)]
struct Session {
    machine: Machine,
    /// Open while an answer is expected.
    socket: Option<DhcpSocket>,
}

impl Client {
    /// Starts to acquire a lease.
    pub(crate) fn begin(
        owner: Owner,
        netns: &Path,
        options: LeaseOptions,
        context: Context,
    ) -> Result<Client> {
        let path = context.host_path(netns);
        let missing = || Error::Gone(format!("failed to open netns {path:?}: no such file or directory"));
        let namespace = identity(&path).ok_or_else(missing)?;
        let found = Interface::find(&path, &owner.ifname)?;
        let no_mac =
            |_| Error::Other(format!("{} has no Ethernet address, which DHCP needs", found.link.name));
        let mac = <[u8; 6]>::try_from(found.link.mac.as_slice()).map_err(no_mac)?;
        let (netns, boot_id, leases) = (netns.to_owned(), context.boot_id.clone(), Vec::new());
        let record = Record { owner, netns, namespace, mac, options, boot_id, leases };
        let mut client = Client::new(record, context)?;
        client.is_new = true;
        client.set_link_up()?;
        Ok(client)
    }

    /// Continues the leases that an earlier daemon process acquired.
    pub(crate) fn resume(record: Record, context: Context) -> Result<Client> {
        let leases = record.leases.clone();
        let mut client = Client::new(record, context)?;
        client.find()?;
        let now = sys::since_boot();
        for at in 0..client.sessions.len() {
            let session = &mut client.sessions[at];
            let actions = match find_lease(&leases, session) {
                Some(lease) => session.machine.resume(lease.clone(), now),
                None => session.machine.begin(now),
            };
            client.perform(at, actions)?;
        }
        Ok(client)
    }

    /// A client with the leases of a record, only to release them.
    pub(crate) fn for_release(record: Record, context: Context) -> Result<Client> {
        let leases = record.leases.clone();
        let mut client = Client::new(record, context)?;
        for session in &mut client.sessions {
            if let Some(lease) = find_lease(&leases, session) {
                // At its start a lease has nothing to send.
                session.machine.resume(lease.clone(), lease.since);
            }
        }
        Ok(client)
    }

    fn new(record: Record, context: Context) -> Result<Client> {
        let mut sessions = Vec::new();
        for protocol in protocols(&record) {
            let seed = sys::random::<8>().map_err(Error::io("get random numbers"))?;
            let rng = Rng::seeded(u64::from_ne_bytes(seed));
            sessions.push(Session { machine: Machine::new(protocol, rng, context.waits), socket: None });
        }
        Ok(Client { record, context, sessions, link_up: None, is_new: false, is_changed: false })
    }

    /// Sets the link up and waits for it: packets that are sent before the peer is ready are lost.
    fn set_link_up(&mut self) -> Result<()> {
        let has_v6 = self.has_v6();
        let mut interface = self.find()?;
        let mut events = interface.pod.run(Socket::route)??;
        events.subscribe(rt::GROUP_LINK)?;
        events.subscribe(GROUP_IPV6_ADDRESS)?;
        interface.set_up(has_v6)?;
        let now = sys::since_boot();
        self.link_up = Some(LinkUpWait { events, deadline: now + LINK_UP_TIMEOUT });
        self.start_if_link_is_up(now)
    }

    /// Starts the sessions if the link is up or the wait timed out.
    fn start_if_link_is_up(&mut self, now: BootTime) -> Result<()> {
        let Some(wait) = &self.link_up else { return Ok(()) };
        if wait.deadline > now && !self.find()?.is_operational(self.has_v6())? {
            return Ok(());
        }
        self.link_up = None;
        for at in 0..self.sessions.len() {
            let actions = self.sessions[at].machine.begin(now);
            self.perform(at, actions)?;
        }
        Ok(())
    }

    fn has_v6(&self) -> bool {
        self.record.options.families != Families::Ipv4
    }

    fn find(&self) -> Result<Interface> {
        let path = self.context.host_path(&self.record.netns);
        if identity(&path) != Some(self.record.namespace) {
            return Err(Error::Gone(format!("the pod of {path:?} is gone")));
        }
        Interface::find(&path, &self.record.owner.ifname)
    }

    /// The attachment.
    pub(crate) fn owner(&self) -> &Owner {
        &self.record.owner
    }

    /// When to call [`tick`](Client::tick).
    pub(crate) fn due(&self) -> Option<BootTime> {
        let sessions = self.sessions.iter().filter_map(|session| session.machine.due());
        sessions.chain(self.link_up.as_ref().map(|wait| wait.deadline)).min()
    }

    /// The open sockets, each with the index of its session.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = (usize, &DhcpSocket)> {
        self.sessions.iter().enumerate().filter_map(|(at, session)| Some((at, session.socket.as_ref()?)))
    }

    /// The link events, while the client waits for them.
    pub(crate) fn link_events(&self) -> Option<&Socket> {
        self.link_up.as_ref().map(|wait| &wait.events)
    }

    /// Handles link events.
    pub(crate) fn handle_link_event(&mut self) -> Result<()> {
        if let Some(wait) = &mut self.link_up {
            // The content does not matter: the state itself is read.
            wait.events.notice(Duration::ZERO, |_| None::<()>)?;
        }
        self.start_if_link_is_up(sys::since_boot())
    }

    /// Acts on everything that is due at `now`.
    pub(crate) fn tick(&mut self, now: BootTime) -> Result<()> {
        if self.link_up.as_ref().is_some_and(|wait| wait.deadline <= now) {
            self.start_if_link_is_up(now)?;
        }
        for at in 0..self.sessions.len() {
            let actions = self.sessions[at].machine.tick(now);
            self.perform(at, actions)?;
        }
        Ok(())
    }

    /// Handles a packet of the session `at`.
    pub(crate) fn receive(&mut self, at: usize) -> Result<()> {
        let Some(session) = self.sessions.get_mut(at) else { return Ok(()) };
        let received = session.socket.as_ref().map_or(Ok(None), DhcpSocket::receive);
        match received {
            Ok(None) => Ok(()),
            Ok(Some(message)) => {
                let actions = session.machine.receive(&message.bytes, message.from, sys::since_boot());
                self.perform(at, actions)
            }
            // The link is down or gone; the next transmission finds out which.
            Err(_) => {
                session.socket = None;
                Ok(())
            }
        }
    }

    fn perform(&mut self, at: usize, actions: Vec<Action>) -> Result<()> {
        for action in actions {
            match action {
                Action::Broadcast(message) => self.send(at, |socket| socket.broadcast(&message))?,
                Action::SendToServer(message, grant) => {
                    self.send(at, |socket| socket.send_to_server(&message, &grant))?;
                }
                Action::Install { old, new } => self.install(old.as_deref(), &new)?,
                Action::Remove(grant) => self.remove(at, &grant)?,
            }
        }
        let session = &mut self.sessions[at];
        if !session.machine.expects_answer() {
            session.socket = None;
        }
        Ok(())
    }

    /// A message that cannot be sent is treated as lost: it will be retransmitted. Only a pod that is gone is an error.
    fn send(&mut self, at: usize, send: impl Fn(&DhcpSocket) -> Result<()>) -> Result<()> {
        let outcome = self.connect(at).and_then(send);
        match outcome {
            Err(error) if error.is_gone() => Err(error),
            Err(error) => {
                self.sessions[at].socket = None;
                log::attachment("send-failed", self.owner(), format_args!("error=\"{error}\""));
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    fn connect(&mut self, at: usize) -> Result<&DhcpSocket> {
        // Even if a socket is open: the interface may be gone, and the daemon must not send for it then.
        let mut interface = self.find()?;
        let session = &mut self.sessions[at];
        let family = session.machine.protocol().family();
        interface.set_up(family.is_v6())?;
        let address = session.machine.lease().and_then(|lease| match lease.grant.address.addr() {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        });
        let socket = match (session.socket.take(), family) {
            (Some(socket), _) => socket,
            (None, IpFamily::V4) => DhcpSocket::v4(&interface.pod, &interface.link, address)?,
            (None, IpFamily::V6) => DhcpSocket::v6(&mut interface.pod, &interface.link)?,
        };
        Ok(session.socket.insert(socket))
    }

    fn install(&mut self, old: Option<&Grant>, new: &Grant) -> Result<()> {
        self.is_changed = true;
        let mut interface = self.find()?;
        let applied = if self.is_new {
            interface.set_mtu(new.mtu)
        } else {
            interface.apply(old, new, self.record.options.route_priority)
        };
        // A configuration that the kernel refuses is no reason to give up the lease.
        if let Err(error) = applied {
            log::attachment("apply-failed", self.owner(), format_args!("error=\"{error}\""));
        }
        let event = if old.is_some() { "renewed" } else { "bound" };
        let fields = format_args!("address={} seconds={}", new.address, new.times.end);
        log::attachment(event, self.owner(), fields);
        Ok(())
    }

    fn remove(&mut self, at: usize, grant: &Grant) -> Result<()> {
        self.is_changed = true;
        self.sessions[at].socket = None;
        // The link stays up while the other family has a lease.
        let is_last = self.sessions.iter().all(|session| session.machine.lease().is_none());
        self.find()?.remove(grant, self.record.options.route_priority, is_last)?;
        log::attachment("lost", self.owner(), format_args!("address={}", grant.address));
        Ok(())
    }

    fn grants(&self) -> Vec<&Grant> {
        self.sessions.iter().filter_map(|session| Some(&session.machine.lease()?.grant)).collect()
    }

    /// The CNI result, once every session has a lease.
    pub(crate) fn result(&self) -> Option<Value> {
        let grants = self.grants();
        if grants.len() < self.sessions.len() {
            return None;
        }
        grant::result(&grants, self.record.options.route_priority).ok()
    }

    /// Why there is no lease, if a server answered.
    pub(crate) fn problem(&self) -> Option<String> {
        self.sessions.iter().find_map(|session| session.machine.problem()).map(String::from)
    }

    /// The record to store.
    pub(crate) fn record(&self) -> Record {
        let leases = self.sessions.iter().filter_map(|session| session.machine.lease().cloned()).collect();
        Record { leases, ..self.record.clone() }
    }

    /// Releases all leases. For a pod that is gone, the DHCPv4 release is sent from the host, if it can reach the server.
    pub(crate) fn release(mut self) {
        for at in 0..self.sessions.len() {
            let sent = match self.sessions[at].machine.release() {
                None => continue,
                Some(Action::SendToServer(message, grant)) => match self.connect(at) {
                    Ok(socket) => socket.send_to_server(&message, &grant),
                    Err(error) if error.is_gone() => socket::send_from_host(&message, &grant),
                    Err(error) => Err(error),
                },
                Some(Action::Broadcast(message)) => {
                    self.connect(at).and_then(|socket| socket.broadcast(&message))
                }
                Some(_) => Ok(()),
            };
            match sent {
                Ok(()) => log::attachment("released", self.owner(), ""),
                Err(error) => {
                    log::attachment("release-failed", self.owner(), format_args!("error=\"{error}\""))
                }
            }
        }
    }
}

/// The lease of a session's family.
fn find_lease<'a>(leases: &'a [Lease], session: &Session) -> Option<&'a Lease> {
    let family = session.machine.protocol().family();
    leases.iter().find(|lease| IpFamily::of_net(lease.grant.address) == family)
}

/// The protocols of an attachment.
fn protocols(record: &Record) -> Vec<Protocol> {
    let Record { owner, options, mac, .. } = record;
    let name = format!("{}/{}/{}", owner.container, owner.network, owner.ifname);
    let mut previous = options.previous_addresses.iter().copied();
    let previous_v4 = previous.clone().find_map(|ip| match ip {
        IpAddr::V4(ip) => Some(ip),
        IpAddr::V6(_) => None,
    });
    let previous_v6 = previous.find_map(|ip| match ip {
        IpAddr::V6(ip) => Some(ip),
        IpAddr::V4(_) => None,
    });
    let v4 = || {
        let id = &name.as_bytes()[..name.len().min(MAX_ID)];
        Protocol::V4(v4::Codec {
            mac: *mac,
            id: [&[0], id].concat(),
            requested: options.requested.clone(),
            provided: options.provided.clone(),
            previous: previous_v4,
        })
    };
    let v6 = || Protocol::V6(v6::Codec { previous: previous_v6, ..v6::Codec::named(&name) });
    match options.families {
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
            options: LeaseOptions { families: family, ..LeaseOptions::default() },
            boot_id: String::new(),
            leases: Vec::new(),
        }
    }

    #[test]
    fn the_identifier_is_that_of_the_go_plugin_and_fits() {
        let id = |container: &str| match &protocols(&record(container, Families::Ipv4))[..] {
            [Protocol::V4(codec)] => codec.id.clone(),
            other => panic!("{other:?}"),
        };
        assert_eq!(id("c1"), b"\0c1/lan/eth0");
        assert_eq!(id(&"c".repeat(300)).len(), 255);
    }

    #[test]
    fn dual_stack_has_two_protocols() {
        assert_eq!(protocols(&record("c1", Families::Dual)).len(), 2);
        assert_eq!(protocols(&record("c1", Families::Ipv6))[0].family(), IpFamily::V6);
    }

    #[test]
    fn the_host_prefix_is_added_to_paths() {
        let context = |prefix: &str| Context {
            host_prefix: prefix.into(),
            waits: Waits { max: Duration::ZERO, answer: Duration::ZERO },
            boot_id: String::new(),
        };
        assert_eq!(context("/host").host_path(Path::new("/run/netns/a")), Path::new("/host/run/netns/a"));
        assert_eq!(context("").host_path(Path::new("/run/netns/a")), Path::new("/run/netns/a"));
    }
}
