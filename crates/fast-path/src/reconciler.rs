//! The thread that keeps the programs attached to the devices that may have them.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use podwire_kernel::firewall::forward;
use podwire_kernel::{sysctl, Host};
use podwire_netlink::rt::link::{self, Link};
use podwire_netlink::rt::tc::Discipline;
use podwire_netlink::rt::{tc, GROUP_LINK, GROUP_TC};
use podwire_netlink::{nft, Socket};
use podwire_reconcile::{Handle, Reconciler};
use tracing::{debug, info, warn};

use crate::devices::{self, Devices};
use crate::error::{Error, Result};
use crate::programs::{Programs, Redirected};
use crate::{attach, rules};

/// The interval between reconciles without an event.
const RESYNC: Duration = Duration::from_secs(60);
/// When new devices get programs.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The age of a device: its plugins are done then, and have set their limits.
    pub settled: Duration,
    /// The shortest time between two reconciles because of new devices.
    pub pause: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options { settled: Duration::from_secs(2), pause: Duration::from_secs(1) }
    }
}

/// conntrack does not see the packets that programs redirect, so the next one that it sees is ahead of its window. The
/// second key is for RST: without it, an RST after more than 2 GB counts as forged.
const LIBERAL: [&str; 2] =
    ["net/netfilter/nf_conntrack_tcp_be_liberal", "net/netfilter/nf_conntrack_tcp_ignore_invalid_rst"];

/// The state of the fast path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Whether connections can take the fast path.
    pub on: bool,
    /// If not, why.
    pub reason: Option<String>,
    /// The pod interfaces with programs: `network/container/interface`.
    pub fast: Vec<String>,
    /// The other pod interfaces, each with the reason.
    pub normal: BTreeMap<String, String>,
    /// The uplinks and tunnels with programs.
    pub uplinks: Vec<String>,
    /// What was redirected to pods since the agent started.
    pub to_pods: Redirected,
    /// What was redirected to other nodes.
    pub to_nodes: Redirected,
}

type SharedPrograms = Arc<Mutex<Programs>>;

/// The handle of the thread. The programs stay when it ends.
#[derive(Clone)]
pub struct FastPath {
    thread: Handle<Vec<String>>,
    programs: SharedPrograms,
    status: Arc<Mutex<Status>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Fails if the kernel lacks a sysctl, or if it cannot be set.
fn make_conntrack_liberal() -> Result<()> {
    LIBERAL.iter().try_for_each(|key| sysctl::ensure_outside_container(key, "1")).map_err(Error::Sysctl)
}

impl FastPath {
    /// Loads the programs and starts the thread, in the network namespace of the caller. An error is a reason why the
    /// fast path is off.
    pub fn start(options: Options) -> Result<FastPath> {
        // The chain makes the kernel load conntrack, which has the sysctls. It marks nothing yet.
        rules::apply(Host::here()?.nft()?, &BTreeSet::new())?;
        make_conntrack_liberal()?;
        let programs = Arc::new(Mutex::new(Programs::load()?));
        let status = Arc::<Mutex<Status>>::default();
        let reconciler = FastPathReconciler::open(options, programs.clone(), status.clone())?;
        let thread = podwire_reconcile::spawn("fast-path", RESYNC, reconciler);
        let thread = thread.map_err(|error| Error::Thread(error.to_string()))?;
        Ok(FastPath { thread, programs, status })
    }

    /// Sets the links by which packets leave with the addresses of pods: uplinks and tunnels.
    pub fn set_links(&self, names: Vec<String>) {
        if let Err(error) = self.thread.send(names) {
            warn!(%error, "new devices get no programs");
        }
    }

    /// The next packet of each connection takes the normal path. Call it after rules or connections were changed.
    pub fn forget_flows(&self) {
        if let Err(error) = locked(&self.programs).forget_flows() {
            warn!(%error, "connections that policies no longer allow can last one second longer");
        }
    }

    /// The state.
    pub fn status(&self) -> Status {
        let mut status = locked(&self.status).clone();
        if let Ok((to_pods, to_nodes)) = locked(&self.programs).redirected() {
            (status.to_pods, status.to_nodes) = (to_pods, to_nodes);
        }
        status
    }
}

struct FastPathReconciler {
    options: Options,
    programs: SharedPrograms,
    status: Arc<Mutex<Status>>,
    host: Host,
    link_events: Socket,
    rule_events: Socket,
    /// `None` until the agent has found them. An uplink can look like a pod's device.
    uplinks: Option<Vec<String>>,
    /// The devices that have our programs.
    attached: BTreeMap<u32, devices::Device>,
    /// When devices were seen first. Those of before the agent are settled.
    seen: BTreeMap<u32, Instant>,
    started: bool,
    /// The time of the last reconcile.
    reconciled: Instant,
    /// When a reconcile is needed because of new devices or disciplines.
    pending: Option<Instant>,
    /// The last failures by device, so that each is logged once.
    failed: BTreeMap<String, String>,
}

/// The outcome of a reconcile.
pub(crate) struct Applied {
    devices: Devices,
    failed: BTreeMap<String, String>,
    /// Why no connection can take the fast path.
    reason: Option<String>,
}

impl FastPathReconciler {
    fn open(
        options: Options,
        programs: SharedPrograms,
        status: Arc<Mutex<Status>>,
    ) -> Result<FastPathReconciler> {
        let (mut link_events, mut rule_events) = (Socket::route()?, Socket::netfilter()?);
        link_events.subscribe(GROUP_LINK)?;
        link_events.subscribe(GROUP_TC)?;
        rule_events.subscribe(nft::GROUP)?;
        Ok(FastPathReconciler {
            options,
            programs,
            status,
            host: Host::here()?,
            link_events,
            rule_events,
            uplinks: None,
            attached: BTreeMap::new(),
            seen: BTreeMap::new(),
            started: false,
            reconciled: Instant::now(),
            pending: None,
            failed: BTreeMap::new(),
        })
    }

    /// Attaches and removes programs. A device that fails keeps the others from nothing.
    fn attach(&mut self, links: &[Link], devices: &mut Devices) -> Result<BTreeMap<String, String>> {
        let disciplines = tc::list_all(&mut self.host.route)?;
        let uplinks = self.uplinks.as_deref().unwrap_or_default();
        let (started, seen, now) = (self.started, &mut self.seen, Instant::now());
        let settled = self.options.settled;
        let present: BTreeSet<u32> = links.iter().map(|link| link.index).collect();
        seen.retain(|index, _| present.contains(index));
        let before = self.attached.len();
        self.attached.retain(|index, _| present.contains(index));
        if self.attached.len() < before {
            locked(&self.programs).forget_flows()?;
        }
        for index in present {
            seen.entry(index).or_insert(if started { now } else { now - settled });
        }
        *devices = devices::choose(links, &disciplines, uplinks, |link| seen[&link.index] + settled <= now);
        let keep = |index: u32| devices.fast.contains_key(&index);
        for name in attach::detach_others(&mut self.host, links, &disciplines, keep)? {
            debug!(device = name, "programs removed");
        }
        self.attached.retain(|index, _| devices.fast.contains_key(index));
        let programs = locked(&self.programs);
        let mut failed = BTreeMap::new();
        for (index, device) in &devices.fast {
            let holds_programs =
                disciplines.iter().any(|one| one.link == *index && one.kind == attach::CLSACT);
            if holds_programs && self.attached.get(index) == Some(device) {
                continue;
            }
            match attach::attach(&mut self.host.route, &programs, *index, device) {
                Ok(()) => drop(self.attached.insert(*index, device.clone())),
                // Deleted meanwhile.
                Err(Error::Netlink(error)) if error.is_gone() => {}
                Err(error) => drop(failed.insert(device.name.clone(), error.to_string())),
            }
        }
        Ok(failed)
    }

    /// Why no packet may be marked.
    fn refusal(&mut self) -> Result<Option<String>> {
        Ok(match forward::has_administrator_rules(self.host.nft()?)? {
            true => Some("the administrator's chain has rules, which must see every packet".to_owned()),
            false => None,
        })
    }
}

impl Reconciler for FastPathReconciler {
    type Message = Vec<String>;
    type Report = Option<Applied>;
    type Error = Error;

    fn receive(&mut self, uplinks: Vec<String>) {
        self.uplinks = Some(uplinks);
    }

    fn reconcile(&mut self) -> Result<Option<Applied>> {
        if self.uplinks.is_none() {
            return Ok(None);
        }
        make_conntrack_liberal()?;
        let links = link::list(&mut self.host.route)?;
        let mut devices = Devices::default();
        let failed = self.attach(&links, &mut devices)?;
        let reason = self.refusal()?;
        let marked = match reason {
            Some(_) => BTreeSet::new(),
            None => devices.marked.clone(),
        };
        if rules::apply(self.host.nft()?, &marked)? && reason.is_some() {
            locked(&self.programs).forget_flows()?;
        }
        let now = Instant::now();
        (self.started, self.reconciled) = (true, now);
        let settled = self.options.settled;
        self.pending =
            self.seen.values().map(|since| *since + settled).filter(|settled| *settled > now).min();
        Ok(Some(Applied { devices, failed, reason }))
    }

    fn report(&mut self, outcome: Result<Option<Applied>>, _: Duration) {
        let mut status = locked(&self.status);
        match outcome {
            Ok(None) => status.reason = Some("the uplinks are not known yet".into()),
            Ok(Some(Applied { devices, failed, reason })) => {
                for (device, error) in &failed {
                    if self.failed.get(device) != Some(error) {
                        warn!(device, error, "packets of a device take the normal path");
                    }
                }
                let on = reason.is_none();
                if (on, &reason) != (status.on, &status.reason) {
                    match &reason {
                        None => info!("fast path is on"),
                        Some(reason) => warn!(reason, "fast path is off"),
                    }
                }
                let of = |role| devices.fast.values().filter(move |device| device.role == role);
                let has_programs = |device: &&devices::Device| !failed.contains_key(&device.name);
                let pods = of(devices::Role::Pod);
                status.fast = pods.filter(has_programs).map(|device| device.owner.clone()).collect();
                status.uplinks = of(devices::Role::Uplink)
                    .filter(has_programs)
                    .map(|device| device.name.clone())
                    .collect();
                let failed_pods = of(devices::Role::Pod)
                    .filter_map(|device| Some((device.owner.clone(), failed.get(&device.name)?.clone())));
                status.normal =
                    devices.normal.iter().map(|(owner, why)| (owner.clone(), why.clone())).collect();
                status.normal.extend(failed_pods);
                (status.on, status.reason) = (on, reason);
                self.failed = failed;
            }
            Err(error) => {
                let reason = Some(error.to_string());
                if status.reason != reason {
                    warn!(%error, "fast path is not up to date");
                }
                status.reason = reason;
            }
        }
    }

    fn event_sources(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.link_events.as_fd(), self.rule_events.as_fd()]
    }

    /// New devices wait until they are settled, and for each other.
    fn due(&self) -> Option<Instant> {
        Some(self.pending?.max(self.reconciled + self.options.pause))
    }

    /// When one of our devices is deleted, its flows are forgotten at once: they would lead nowhere, and the next pod may
    /// get the address.
    fn handle_events(&mut self, _: &[bool]) -> Result<bool> {
        let (mut changed, mut gone, now) = (false, false, Instant::now());
        let FastPathReconciler { attached, seen, pending, options, .. } = self;
        let uplinks = self.uplinks.as_deref().unwrap_or_default();
        let mut wait = |until: Instant| *pending = Some(pending.map_or(until, |other| other.min(until)));
        let links_complete = self.link_events.drain(|frame| {
            if let Some(discipline) = Discipline::read(frame) {
                if seen.contains_key(&discipline.link) && discipline.kind != attach::CLSACT {
                    wait(now);
                }
                return;
            }
            // A bridge sends RTM_DELLINK (AF_BRIDGE) for a port that leaves it.
            let is_bridges = frame.body.first() == Some(&(libc::AF_BRIDGE as u8));
            let Some(link) = Link::read(frame).filter(|_| !is_bridges) else { return };
            changed |= uplinks.contains(&link.name);
            if frame.kind == libc::RTM_DELLINK {
                seen.remove(&link.index);
                gone |= attached.remove(&link.index).is_some();
            } else if link.kind == "veth" {
                // New, or with an owner now, or a port of a bridge.
                let since = *seen.entry(link.index).or_insert(now);
                wait(now.max(since + options.settled));
            }
        })?;
        let rules_complete = self.rule_events.drain(|frame| {
            changed |= nft::subject(frame).is_some_and(|(table, chain)| {
                table == rules::TABLE || forward::is_administrators(&table, chain.as_deref())
            });
        })?;
        if gone || !links_complete {
            locked(&self.programs).forget_flows()?;
        }
        Ok(changed || !links_complete || !rules_complete)
    }
}
