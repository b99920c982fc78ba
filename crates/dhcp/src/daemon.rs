//! The daemon: one thread that polls for requests of plugins, packets, pending releases, signals and timers.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use podwire_agent_ipc::dhcp::{LeaseOptions, Request, Response, STATE_DIR};
use podwire_agent_ipc::{pending, Owner, ValidAttachment};
use podwire_fs::FileError;
use podwire_netlink::sys;

use crate::client::{Client, Context};
use crate::grant::BootTime;
use crate::record::LeaseDir;
use crate::retransmit::Waits;
use crate::server::{self, Connection, Progress, Server};
use crate::settings::Settings;
use crate::{log, Error, Result};

const TRY_AGAIN: u32 = podwire_cni_spec::code::TRY_AGAIN;
/// The text of Go's daemon for an ADD that no server answered in time.
const NO_MORE_TRIES: &str = "no more tries";
const HINT: &str =
    "check that a DHCP server is on the network of the interface; the `event=` lines of the daemon's log \
                    have details";
/// The poll timeout if nothing is due.
const IDLE_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
/// The largest number of open connections; more wait in the listen queue.
const MAX_CONNECTIONS: usize = 256;

/// Runs the daemon until SIGTERM or SIGINT. Leases are kept for the next start.
pub fn run(settings: &Settings) -> Result<()> {
    // First: the passed socket has a fixed descriptor number, which no other file may take.
    let passed = server::passed()?;
    let signal =
        sys::open_signalfd(&[libc::SIGTERM, libc::SIGINT]).map_err(Error::io("watch for signals"))?;
    let boot_id = pending::boot_id().map_err(FileError::at("read", "/proc/sys/kernel/random/boot_id"))?;
    let waits = Waits { max: settings.resend_max, answer: settings.timeout };
    let context = Context { host_prefix: settings.host_prefix.clone(), waits, boot_id };
    let lease_dir = LeaseDir::open(&context.host_path(Path::new(STATE_DIR)), &context.boot_id)?;
    let watched = lease_dir.released_dir();
    let watch = sys::watch_written_files(&watched).map_err(FileError::at("watch", &watched))?;
    let server = Server::open(passed, &context.host_path(&settings.socket))?;
    if let Some(path) = &settings.pid_file {
        if !path.is_absolute() {
            return Err(Error::Other(format!("Error writing pidfile {path:?}: path not absolute")));
        }
        fs::write(path, std::process::id().to_string()).map_err(FileError::at("write", path))?;
    }
    let mut daemon = Daemon {
        add_timeout: settings.resend_timeout,
        context,
        lease_dir,
        server,
        released: watch.into(),
        signal,
        connections: Vec::new(),
        attachments: BTreeMap::new(),
    };
    daemon.resume();
    daemon.process_released();
    log::daemon("ready", format_args!("socket={:?} leases={}", settings.socket, daemon.attachments.len()));
    let outcome = daemon.serve();
    daemon.stop();
    if let Some(path) = &settings.pid_file {
        let _ = fs::remove_file(path);
    }
    outcome
}

struct Daemon {
    /// How long an ADD waits for a server.
    add_timeout: Duration,
    context: Context,
    lease_dir: LeaseDir,
    server: Server,
    /// Watches the directory of pending releases.
    released: File,
    signal: OwnedFd,
    /// Connections whose request is not complete.
    connections: Vec<Option<Connection>>,
    attachments: BTreeMap<Owner, Attachment>,
}

/// An attachment and the ADD that waits for it.
struct Attachment {
    client: Client,
    waiting: Option<PendingAdd>,
}

/// An ADD that waits for its lease.
struct PendingAdd {
    connection: Connection,
    deadline: BootTime,
}

/// A polled descriptor.
#[derive(Clone, Debug)]
enum Source {
    Signal,
    Server,
    Released,
    Connection(usize),
    PendingAdd(Owner),
    LinkEvents(Owner),
    DhcpSocket(Owner, usize),
}

impl Daemon {
    /// Continues the leases of an earlier daemon process.
    fn resume(&mut self) {
        for record in self.lease_dir.leases() {
            let owner = record.owner.clone();
            match Client::resume(record, self.context.clone()) {
                Ok(client) => {
                    log::attachment("resumed", &owner, "");
                    self.attachments.insert(owner.clone(), Attachment { client, waiting: None });
                    self.store(&owner);
                }
                Err(error) => self.forget(&owner, &error),
            }
        }
    }

    /// Polls and works until a signal arrives.
    fn serve(&mut self) -> Result<()> {
        loop {
            let (sources, fds) = self.sources();
            let timeout = self.due().map_or(IDLE_TIMEOUT, |due| due.saturating_sub(sys::since_boot()));
            // poll(2) counts whole milliseconds: round up.
            let ready =
                sys::readable(&fds, timeout + Duration::from_micros(999)).map_err(Error::io("poll"))?;
            let ready: Vec<_> = ready.into_iter().zip(sources).filter(|(ready, _)| *ready).collect();
            for (_, source) in ready {
                match source {
                    Source::Signal => return Ok(()),
                    Source::Server => self.accept(),
                    Source::Released => self.process_released(),
                    Source::Connection(at) => self.read_request(at),
                    Source::PendingAdd(owner) => self.check_pending_add(&owner),
                    Source::LinkEvents(owner) => self.run_client(&owner, Client::handle_link_event),
                    Source::DhcpSocket(owner, at) => self.run_client(&owner, |client| client.receive(at)),
                }
            }
            self.connections.retain(Option::is_some);
            self.tick();
        }
    }

    fn sources(&self) -> (Vec<Source>, Vec<BorrowedFd<'_>>) {
        let mut all = vec![(Source::Signal, self.signal.as_fd()), (Source::Released, self.released.as_fd())];
        if self.connections.len() < MAX_CONNECTIONS {
            all.push((Source::Server, self.server.as_fd()));
        }
        let connections = self.connections.iter().enumerate();
        all.extend(connections.filter_map(|(at, one)| Some((Source::Connection(at), one.as_ref()?.as_fd()))));
        for (owner, attachment) in &self.attachments {
            let own = || owner.clone();
            let waiting = attachment.waiting.iter();
            all.extend(waiting.map(|add| (Source::PendingAdd(own()), add.connection.as_fd())));
            let events = attachment.client.link_events();
            all.extend(events.map(|events| (Source::LinkEvents(own()), events.as_fd())));
            for (at, socket) in attachment.client.sockets() {
                all.extend(socket.fds().map(|fd| (Source::DhcpSocket(own(), at), fd)));
            }
        }
        all.into_iter().unzip()
    }

    fn due(&self) -> Option<BootTime> {
        let attachments = self.attachments.values();
        let clients = attachments.clone().filter_map(|one| one.client.due());
        let waiting = attachments.filter_map(|one| one.waiting.as_ref().map(|add| add.deadline));
        let connections = self.connections.iter().flatten().map(|connection| connection.deadline);
        clients.chain(waiting).chain(connections).min()
    }

    fn accept(&mut self) {
        while let Some(connection) = self.server.accept(sys::since_boot()) {
            self.connections.push(Some(connection));
            if self.connections.len() >= MAX_CONNECTIONS {
                return;
            }
        }
    }

    /// The slot of a connection that is done stays empty until all ready sources were handled, so that indexes stay valid.
    fn read_request(&mut self, at: usize) {
        let Some(mut connection) = self.connections.get_mut(at).and_then(Option::take) else { return };
        match connection.read() {
            Progress::Incomplete => self.connections[at] = Some(connection),
            Progress::Failed => {}
            Progress::Complete(request) => self.handle(connection, request),
        }
    }

    fn handle(&mut self, connection: Connection, request: Request) {
        let response = match request {
            Request::Acquire { owner, netns, options } => {
                return self.acquire(connection, owner, &netns, options)
            }
            Request::Release { owner } => {
                self.release(&owner);
                Response::Done
            }
            Request::Inspect { owner } => self.inspect(&owner),
            Request::Collect { network, valid } => {
                self.collect(&network, &valid);
                Response::Done
            }
            Request::Ping => Response::Done,
        };
        // The request was carried out even if the client does not wait for the response.
        let _ = connection.respond(&response);
    }

    fn acquire(&mut self, connection: Connection, owner: Owner, netns: &Path, options: LeaseOptions) {
        // For the server the same owner is the same client, so an earlier lease continues.
        if let Some(Attachment { waiting: Some(earlier), .. }) = self.attachments.remove(&owner) {
            let _ =
                earlier.connection.respond(&failed("another ADD for the same interface replaced this one"));
        }
        match Client::begin(owner.clone(), netns, options, self.context.clone()) {
            Ok(client) => {
                let deadline = sys::since_boot() + self.add_timeout;
                let waiting = Some(PendingAdd { connection, deadline });
                self.attachments.insert(owner, Attachment { client, waiting });
            }
            Err(error) => drop(connection.respond(&failed(&error.to_string()))),
        }
    }

    fn release(&mut self, owner: &Owner) {
        self.lease_dir.remove(owner);
        if let Some(Attachment { client, waiting }) = self.attachments.remove(owner) {
            client.release();
            if let Some(add) = waiting {
                let _ = add.connection.respond(&failed("a DEL for the same interface arrived"));
            }
        }
    }

    fn inspect(&self, owner: &Owner) -> Response {
        let Some(attachment) = self.attachments.get(owner) else {
            return Response::NoLease { reason: "the daemon has no lease for it".into() };
        };
        if let Some(result) = attachment.client.result() {
            return Response::Lease { result };
        }
        let problem = attachment.client.problem();
        let reason = problem.unwrap_or_else(|| "the lease ended and no server grants another".into());
        Response::NoLease { reason }
    }

    fn collect(&mut self, network: &str, valid: &[ValidAttachment]) {
        let is_valid = |owner: &Owner| {
            valid.iter().any(|one| one.container_id == owner.container && one.ifname == owner.ifname)
        };
        // The list may lack an attachment whose ADD is in progress.
        let stale = self
            .attachments
            .iter()
            .filter(|(owner, one)| owner.network == network && one.waiting.is_none() && !is_valid(owner));
        let stale: Vec<_> = stale.map(|(owner, _)| owner.clone()).collect();
        stale.iter().for_each(|owner| self.release(owner));
    }

    /// Releases the leases whose release plugins recorded.
    fn process_released(&mut self) {
        // The events do not matter: the whole directory is read.
        let mut buffer = [0; 4096];
        while self.released.read(&mut buffer).is_ok_and(|length| length > 0) {}
        for record in self.lease_dir.take_released() {
            let owner = record.owner.clone();
            if self.attachments.contains_key(&owner) {
                self.release(&owner);
                continue;
            }
            match Client::for_release(record, self.context.clone()) {
                Ok(client) => client.release(),
                Err(error) => self.forget(&owner, &error),
            }
        }
    }

    /// A plugin that waits for its lease sends nothing more: its connection is readable only if it closed it.
    fn check_pending_add(&mut self, owner: &Owner) {
        let Some(Attachment { waiting: Some(add), .. }) = self.attachments.get_mut(owner) else { return };
        if add.connection.is_closed() {
            log::attachment("abandoned", owner, "reason=\"the plugin is gone\"");
            if let Some(Attachment { client, .. }) = self.attachments.remove(owner) {
                client.release();
            }
        }
    }

    /// Runs a step of a client, then stores the outcome.
    fn run_client(&mut self, owner: &Owner, step: impl FnOnce(&mut Client) -> Result<()>) {
        let Some(attachment) = self.attachments.get_mut(owner) else { return };
        match step(&mut attachment.client) {
            Ok(()) => self.store(owner),
            Err(error) if error.is_gone() || attachment.waiting.is_some() => self.forget(owner, &error),
            // The next step may succeed.
            Err(error) => {
                log::attachment("failed", owner, format_args!("error=\"{error}\""));
                self.store(owner);
            }
        }
    }

    fn tick(&mut self) {
        let now = sys::since_boot();
        self.connections.retain(|one| one.as_ref().is_some_and(|connection| connection.deadline > now));
        let due = self.attachments.iter().filter(|(_, one)| {
            let is_late = one.waiting.as_ref().is_some_and(|add| add.deadline <= now);
            is_late || one.client.due().is_some_and(|due| due <= now)
        });
        let due: Vec<_> = due.map(|(owner, _)| owner.clone()).collect();
        for owner in due {
            self.run_client(&owner, |client| client.tick(now));
            self.give_up(&owner, now);
        }
    }

    /// Stores a changed lease and answers the ADD that waits for it.
    fn store(&mut self, owner: &Owner) {
        let Some(attachment) = self.attachments.get_mut(owner) else { return };
        let result = attachment.client.result();
        if !attachment.client.is_changed || (attachment.waiting.is_some() && result.is_none()) {
            return;
        }
        attachment.client.is_changed = false;
        let written = self.lease_dir.write(&attachment.client.record());
        let Some(add) = attachment.waiting.take() else {
            if let Err(error) = written {
                log::attachment("write-failed", owner, format_args!("error=\"{error}\""));
            }
            return;
        };
        attachment.client.is_new = false;
        let response = match written {
            Ok(()) => Response::Lease { result: result.unwrap_or_default() },
            Err(error) => failed(&error.to_string()),
        };
        let is_received = add.connection.respond(&response).is_ok();
        if !is_received || !matches!(response, Response::Lease { .. }) {
            self.release(owner);
        }
    }

    /// Answers an ADD whose deadline has passed.
    fn give_up(&mut self, owner: &Owner, now: BootTime) {
        let Some(attachment) = self.attachments.get(owner) else { return };
        if attachment.waiting.as_ref().is_none_or(|add| add.deadline > now) {
            return;
        }
        let Some(Attachment { client, waiting: Some(add) }) = self.attachments.remove(owner) else { return };
        let seconds = self.add_timeout.as_secs_f64();
        let (msg, why) = match client.problem() {
            None => (NO_MORE_TRIES.into(), format!("no DHCP server answered within {seconds} s")),
            Some(problem) => (problem, format!("no DHCP server granted an address within {seconds} s")),
        };
        client.release();
        let _ = add.connection.respond(&failed_because(&msg, &format!("{why}: {HINT}")));
    }

    /// Drops an attachment. If the pod or its interface is gone, the stored lease is removed; after another error it stays for
    /// the next start of the daemon.
    fn forget(&mut self, owner: &Owner, error: &Error) {
        if error.is_gone() {
            self.lease_dir.remove(owner);
        }
        log::attachment("forgotten", owner, format_args!("reason=\"{error}\""));
        if let Some(Attachment { waiting: Some(add), .. }) = self.attachments.remove(owner) {
            let _ = add.connection.respond(&failed(&error.to_string()));
        }
    }

    /// Answers the ADDs that wait. Leases are kept.
    fn stop(&mut self) {
        for (_, attachment) in std::mem::take(&mut self.attachments) {
            if let Some(add) = attachment.waiting {
                attachment.client.release();
                let _ = add.connection.respond(&failed("the DHCP daemon is stopping"));
            }
        }
        log::daemon("stopped", "");
    }
}

fn failed(msg: &str) -> Response {
    failed_because(msg, HINT)
}

fn failed_because(msg: &str, hint: &str) -> Response {
    Response::Failed { code: TRY_AGAIN, msg: msg.into(), hint: hint.into() }
}
