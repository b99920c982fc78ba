//! The daemon: one thread that waits in one place for plugins, packets, notes, signals and the next moment at which
//! something is due.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use podwire_agent_ipc::dhcp::{LeaseOptions, Request, Response, STATE_DIR};
use podwire_agent_ipc::{Owner, ValidAttachment};
use podwire_netlink::sys;

use crate::door::{self, Door, Said, Visitor};
use crate::grant::Moment;
use crate::record::Shelf;
use crate::tenant::{Manner, Tenant};
use crate::{journal, Error, Result};

const TRY_AGAIN: u32 = podwire_cni_spec::code::TRY_AGAIN;
/// If nothing is due.
const LONG: Duration = Duration::from_secs(24 * 3600);
/// More are left in the queue until others have been served.
const MOST_VISITORS: usize = 256;

/// How the daemon works.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where plugins connect.
    pub socket: PathBuf,
    /// Where the node's root is, if that is not this process's own.
    pub host_prefix: PathBuf,
    /// A file for the number of the process.
    pub pid_file: Option<PathBuf>,
    /// How long an ADD waits for a server.
    pub timeout: Duration,
    /// The longest wait between two tries.
    pub resend_max: Duration,
}

impl Settings {
    fn on_node(&self, path: &Path) -> PathBuf {
        match self.host_prefix.as_os_str().is_empty() {
            true => path.to_owned(),
            false => self.host_prefix.join(path.strip_prefix("/").unwrap_or(path)),
        }
    }
}

/// Runs the daemon until somebody ends it with SIGTERM or SIGINT. Leases are kept for the next time.
pub fn run(settings: &Settings) -> Result<()> {
    // First of all: what the service manager passed on has its number until somebody else takes it.
    let passed = door::passed()?;
    let signal =
        sys::open_signalfd(&[libc::SIGTERM, libc::SIGINT]).map_err(Error::io("watch for signals"))?;
    let shelf = Shelf::open(&settings.on_node(Path::new(STATE_DIR)))?;
    let watched = shelf.notes();
    let watch = sys::watch_written_files(&watched).map_err(Error::file("watch folder", &watched))?;
    let door = Door::open(passed, &settings.on_node(&settings.socket))?;
    if let Some(path) = &settings.pid_file {
        fs::write(path, format!("{}\n", std::process::id())).map_err(Error::file("write", path))?;
    }
    let (prefix, boot) = (settings.host_prefix.clone(), shelf.boot().to_owned());
    let manner = Manner { prefix, longest: settings.resend_max, boot };
    let (visitors, tenants) = (Vec::new(), BTreeMap::new());
    let mut daemon = Daemon {
        timeout: settings.timeout,
        manner,
        shelf,
        door,
        watch: watch.into(),
        signal,
        visitors,
        tenants,
    };
    daemon.resume();
    daemon.read_notes();
    journal::say("ready", format_args!("socket={:?} leases={}", settings.socket, daemon.tenants.len()));
    let outcome = daemon.serve();
    daemon.stop();
    if let Some(path) = &settings.pid_file {
        let _ = fs::remove_file(path);
    }
    outcome
}

struct Daemon {
    timeout: Duration,
    manner: Manner,
    shelf: Shelf,
    door: Door,
    /// The folder of notes.
    watch: File,
    signal: OwnedFd,
    /// Those who have not said what they want.
    visitors: Vec<Option<Visitor>>,
    tenants: BTreeMap<Owner, Guest>,
}

/// An attachment, and who waits for it.
struct Guest {
    tenant: Tenant,
    /// The plugin that asked for it, and until when it waits.
    waiting: Option<(Visitor, Moment)>,
}

/// Who has something to tell.
#[derive(Clone, Debug)]
enum Source {
    Signal,
    Door,
    Notes,
    Visitor(usize),
    Waiting(Owner),
    Notices(Owner),
    Wire(Owner, usize),
}

impl Daemon {
    /// Goes on with the leases of the daemon's earlier life.
    fn resume(&mut self) {
        for record in self.shelf.leases() {
            let owner = record.owner.clone();
            match Tenant::resume(record, self.manner.clone()) {
                Ok(tenant) => {
                    journal::note("resumed", &owner, "");
                    self.tenants.insert(owner.clone(), Guest { tenant, waiting: None });
                    self.keep(&owner);
                }
                Err(error) => self.forget(&owner, &error),
            }
        }
    }

    /// Waits and works until a signal comes.
    fn serve(&mut self) -> Result<()> {
        loop {
            let (sources, fds) = self.sources();
            let patience = self.due().map_or(LONG, |due| due.saturating_sub(sys::since_boot()));
            // The system counts in whole milliseconds: not one too few.
            let ready = sys::readable(&fds, patience + Duration::from_micros(999))
                .map_err(Error::io("wait for something to do"))?;
            let ready: Vec<_> = ready.into_iter().zip(sources).filter(|(ready, _)| *ready).collect();
            for (_, source) in ready {
                match source {
                    Source::Signal => return Ok(()),
                    Source::Door => self.open_door(),
                    Source::Notes => self.read_notes(),
                    Source::Visitor(at) => self.listen(at),
                    Source::Waiting(owner) => self.check_waiting(&owner),
                    Source::Notices(owner) => self.attend(&owner, Tenant::noticed),
                    Source::Wire(owner, line) => self.attend(&owner, |tenant| tenant.hear(line)),
                }
            }
            self.visitors.retain(Option::is_some);
            self.tick();
        }
    }

    fn sources(&self) -> (Vec<Source>, Vec<BorrowedFd<'_>>) {
        let mut all = vec![(Source::Signal, self.signal.as_fd()), (Source::Notes, self.watch.as_fd())];
        if self.visitors.len() < MOST_VISITORS {
            all.push((Source::Door, self.door.as_fd()));
        }
        let visitors = self.visitors.iter().enumerate();
        all.extend(visitors.filter_map(|(at, one)| Some((Source::Visitor(at), one.as_ref()?.as_fd()))));
        for (owner, guest) in &self.tenants {
            let own = || owner.clone();
            all.extend(guest.waiting.iter().map(|(visitor, _)| (Source::Waiting(own()), visitor.as_fd())));
            all.extend(guest.tenant.notices().map(|notices| (Source::Notices(own()), notices.as_fd())));
            for (line, wire) in guest.tenant.wires() {
                all.extend(wire.fds().map(|fd| (Source::Wire(own(), line), fd)));
            }
        }
        all.into_iter().unzip()
    }

    fn due(&self) -> Option<Moment> {
        let guests = self.tenants.values();
        let tenants = guests.clone().filter_map(|guest| guest.tenant.due());
        let waiting = guests.filter_map(|guest| guest.waiting.as_ref().map(|(_, until)| *until));
        tenants.chain(waiting).chain(self.visitors.iter().flatten().map(|visitor| visitor.until)).min()
    }

    fn open_door(&mut self) {
        while let Some(visitor) = self.door.visitor(sys::since_boot()) {
            self.visitors.push(Some(visitor));
            if self.visitors.len() >= MOST_VISITORS {
                return;
            }
        }
    }

    /// The place of a visitor who has said what it wants, or has gone, stays empty until all who were ready were heard.
    fn listen(&mut self, at: usize) {
        let Some(mut visitor) = self.visitors.get_mut(at).and_then(Option::take) else { return };
        match visitor.listen() {
            Said::Part => self.visitors[at] = Some(visitor),
            Said::Nothing => {}
            Said::Request(question) => self.answer(visitor, question),
        }
    }

    fn answer(&mut self, visitor: Visitor, question: Request) {
        let answer = match question {
            Request::Acquire { owner, netns, options: wish } => {
                return self.acquire(visitor, owner, &netns, wish)
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
        // Nobody need hear that it was done.
        let _ = visitor.answer(&answer);
    }

    fn acquire(&mut self, visitor: Visitor, owner: Owner, netns: &Path, wish: LeaseOptions) {
        // Whoever asks again under the same name is the same to the server: what was held goes on.
        if let Some(Guest { waiting: Some((earlier, _)), .. }) = self.tenants.remove(&owner) {
            let _ = earlier.answer(&failed("another ADD came for the same interface"));
        }
        match Tenant::begin(owner.clone(), netns, wish, self.manner.clone()) {
            Ok(tenant) => {
                let until = sys::since_boot() + self.timeout;
                self.tenants.insert(owner, Guest { tenant, waiting: Some((visitor, until)) });
            }
            Err(error) => drop(visitor.answer(&failed(&error.to_string()))),
        }
    }

    fn release(&mut self, owner: &Owner) {
        self.shelf.remove(owner);
        if let Some(Guest { tenant, waiting }) = self.tenants.remove(owner) {
            tenant.release();
            if let Some((visitor, _)) = waiting {
                let _ = visitor.answer(&failed("a DEL came meanwhile"));
            }
        }
    }

    fn inspect(&self, owner: &Owner) -> Response {
        let none = |why: &str| Response::NoLease { reason: why.into() };
        match self.tenants.get(owner) {
            None => none("the daemon holds no lease for it"),
            Some(guest) => match guest.tenant.result() {
                Some(result) => Response::Lease { result },
                None => none(
                    &guest.tenant.trouble().unwrap_or("its lease ended and no server gives another".into()),
                ),
            },
        }
    }

    fn collect(&mut self, network: &str, valid: &[ValidAttachment]) {
        let is_valid = |owner: &Owner| {
            valid.iter().any(|one| one.container_id == owner.container && one.ifname == owner.ifname)
        };
        // One that is being attached right now may not be known to whoever made the list.
        let others = self
            .tenants
            .iter()
            .filter(|(owner, guest)| owner.network == network && guest.waiting.is_none() && !is_valid(owner));
        let others: Vec<_> = others.map(|(owner, _)| owner.clone()).collect();
        others.iter().for_each(|owner| self.release(owner));
    }

    /// Leases that plugins noted to be given back.
    fn read_notes(&mut self) {
        // What changed is of no interest: the whole folder is read.
        let mut buffer = [0; 4096];
        while self.watch.read(&mut buffer).is_ok_and(|length| length > 0) {}
        for record in self.shelf.take_notes() {
            let owner = record.owner.clone();
            match self.tenants.contains_key(&owner) {
                true => self.release(&owner),
                false => match Tenant::remember(record, self.manner.clone()) {
                    Ok(tenant) => tenant.release(),
                    Err(error) => self.forget(&owner, &error),
                },
            }
        }
    }

    /// A plugin that waits for its lease has something to tell: that it went away.
    fn check_waiting(&mut self, owner: &Owner) {
        let Some(Guest { waiting: Some((visitor, _)), .. }) = self.tenants.get_mut(owner) else { return };
        if visitor.has_left() {
            journal::note("abandoned", owner, "reason=\"the plugin is gone\"");
            if let Some(Guest { tenant, .. }) = self.tenants.remove(owner) {
                tenant.release();
            }
        }
    }

    /// Lets a tenant work, then keeps what became of it.
    fn attend(&mut self, owner: &Owner, work: impl FnOnce(&mut Tenant) -> Result<()>) {
        let Some(guest) = self.tenants.get_mut(owner) else { return };
        match work(&mut guest.tenant) {
            Ok(()) => self.keep(owner),
            Err(error) if error.is_gone() || guest.waiting.is_some() => self.forget(owner, &error),
            // It may be better next time.
            Err(error) => {
                journal::note("troubled", owner, format_args!("error=\"{error}\""));
                self.keep(owner);
            }
        }
    }

    fn tick(&mut self) {
        let now = sys::since_boot();
        self.visitors.retain(|visitor| visitor.as_ref().is_some_and(|visitor| visitor.until > now));
        let due = self.tenants.iter().filter(|(_, guest)| {
            let waits = guest.waiting.as_ref().is_some_and(|(_, until)| *until <= now);
            waits || guest.tenant.due().is_some_and(|due| due <= now)
        });
        let due: Vec<_> = due.map(|(owner, _)| owner.clone()).collect();
        for owner in due {
            self.attend(&owner, |tenant| tenant.tick(now));
            self.give_up(&owner, now);
        }
    }

    /// Writes down what changed, and answers whoever waits for it.
    fn keep(&mut self, owner: &Owner) {
        let Some(guest) = self.tenants.get_mut(owner) else { return };
        let result = guest.tenant.result();
        if !guest.tenant.is_changed || (guest.waiting.is_some() && result.is_none()) {
            return;
        }
        guest.tenant.is_changed = false;
        let written = self.shelf.write(&guest.tenant.record());
        let Some((visitor, _)) = guest.waiting.take() else {
            if let Err(error) = written {
                journal::note("unwritten", owner, format_args!("error=\"{error}\""));
            }
            return;
        };
        guest.tenant.is_new = false;
        let answer = match written {
            Ok(()) => Response::Lease { result: result.unwrap_or_default() },
            Err(error) => failed(&error.to_string()),
        };
        let heard = visitor.answer(&answer).is_ok();
        if !heard || !matches!(answer, Response::Lease { .. }) {
            self.release(owner);
        }
    }

    /// Tells a plugin that has waited long enough.
    fn give_up(&mut self, owner: &Owner, now: Moment) {
        let Some(guest) = self.tenants.get(owner) else { return };
        if guest.waiting.as_ref().is_none_or(|(_, until)| *until > now) {
            return;
        }
        let Some(Guest { tenant, waiting: Some((visitor, _)) }) = self.tenants.remove(owner) else { return };
        let seconds = self.timeout.as_secs_f64();
        let text = match tenant.trouble() {
            None => format!("no DHCP server answered within {seconds} s"),
            Some(trouble) => format!("no DHCP server gave an address within {seconds} s: {trouble}"),
        };
        tenant.release();
        let _ = visitor.answer(&failed(&text));
    }

    /// The pod, or its interface, is gone: nobody is left to keep a lease for. If it only cannot be worked with, the file
    /// stays for the daemon's next life.
    fn forget(&mut self, owner: &Owner, error: &Error) {
        if error.is_gone() {
            self.shelf.remove(owner);
        }
        journal::note("forgotten", owner, format_args!("reason=\"{error}\""));
        if let Some(Guest { waiting: Some((visitor, _)), .. }) = self.tenants.remove(owner) {
            let _ = visitor.answer(&failed(&error.to_string()));
        }
    }

    /// Plugins that wait are told; leases stay as they are.
    fn stop(&mut self) {
        for (_, guest) in std::mem::take(&mut self.tenants) {
            if let Some((visitor, _)) = guest.waiting {
                guest.tenant.release();
                let _ = visitor.answer(&failed("the DHCP daemon is stopping"));
            }
        }
        journal::say("stopped", "");
    }
}

fn failed(msg: &str) -> Response {
    let hint = "is a DHCP server on the network that the interface is connected to? `event=` lines of the daemon tell more";
    Response::Failed { code: TRY_AGAIN, msg: msg.into(), hint: hint.into() }
}
