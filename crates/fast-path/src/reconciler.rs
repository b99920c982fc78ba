//! The thread that keeps the programs attached to the devices that may have them.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use podwire_kernel::firewall::forward;
use podwire_kernel::Host;
use podwire_netlink::rt::link::{self, Link};
use podwire_netlink::rt::tc::Discipline;
use podwire_netlink::rt::{tc, GROUP_LINK, GROUP_TC};
use podwire_netlink::{nft, Socket};
use podwire_reconcile::Reconciler;
use tracing::{debug, info, warn};

use crate::devices::{self, Device, Devices, Role};
use crate::error::{Error, Result};
use crate::programs::Programs;
use crate::status::{locked, Status};
use crate::{attach, rules, sysctls};

/// The interval between reconciles without an event.
pub(crate) const RESYNC: Duration = Duration::from_secs(60);

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

pub(crate) struct FastPathReconciler {
    options: Options,
    programs: Arc<Mutex<Programs>>,
    status: Arc<Mutex<Status>>,
    host: Host,
    link_events: Socket,
    rule_events: Socket,
    /// The links by which packets leave with the addresses of pods. `None` until the agent has found them: the node of a
    /// container has a veth device as uplink.
    links: Option<Vec<String>>,
    /// The devices that have our programs.
    attached: BTreeMap<u32, Device>,
    /// When devices were seen first. Devices from before the agent count as settled.
    seen: BTreeMap<u32, Instant>,
    /// Whether the first reconcile is done.
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
    pub(crate) fn open(
        options: Options,
        programs: Arc<Mutex<Programs>>,
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
            links: None,
            attached: BTreeMap::new(),
            seen: BTreeMap::new(),
            started: false,
            reconciled: Instant::now(),
            pending: None,
            failed: BTreeMap::new(),
        })
    }

    /// Forgets devices that are gone, and notes new ones.
    fn note_devices(&mut self, links: &[Link]) -> Result<()> {
        let present: BTreeSet<u32> = links.iter().map(|link| link.index).collect();
        let before = self.attached.len();
        self.attached.retain(|index, _| present.contains(index));
        if self.attached.len() < before {
            locked(&self.programs).forget_flows()?;
        }
        self.seen.retain(|index, _| present.contains(index));
        let now = Instant::now();
        let since = if self.started { now } else { now - self.options.settled };
        for index in present {
            self.seen.entry(index).or_insert(since);
        }
        Ok(())
    }

    fn choose(&self, links: &[Link], disciplines: &[Discipline]) -> Devices {
        let (now, settled) = (Instant::now(), self.options.settled);
        let pod_links = self.links.as_deref().unwrap_or_default();
        let is_settled =
            |link: &Link| self.seen.get(&link.index).is_some_and(|since| *since + settled <= now);
        devices::choose(links, disciplines, pod_links, is_settled)
    }

    /// Attaches the programs to the devices that lack them. Returns why it failed, by device.
    fn attach(&mut self, devices: &Devices, disciplines: &[Discipline]) -> Result<BTreeMap<String, String>> {
        let holds_programs = |one: &&Discipline| one.kind == attach::CLSACT;
        let prepared: BTreeSet<u32> = disciplines.iter().filter(holds_programs).map(|one| one.link).collect();
        self.attached.retain(|index, device| {
            prepared.contains(index) && devices.fast.get(index).is_some_and(|wanted| wanted == device)
        });
        let programs = locked(&self.programs);
        let mut failed = BTreeMap::new();
        for (index, device) in &devices.fast {
            if self.attached.contains_key(index) {
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

    fn report_applied(&mut self, Applied { devices, failed, reason }: Applied) {
        for (device, error) in failed.iter().filter(|(device, error)| self.failed.get(*device) != Some(error))
        {
            warn!(device, error, "packets of a device take the normal path");
        }
        let mut status = locked(&self.status);
        let on = reason.is_none();
        match &reason {
            _ if (on, &reason) == (status.on, &status.reason) => {}
            None => info!("fast path is on"),
            Some(reason) => warn!(reason, "fast path is off"),
        }
        (status.on, status.reason) = (on, reason);
        (status.fast, status.uplinks, status.normal) = (Vec::new(), Vec::new(), devices.normal);
        for Device { name, role, owner } in devices.fast.into_values() {
            match (role, failed.get(&name)) {
                (Role::Pod, None) => status.fast.push(owner),
                (Role::Pod, Some(error)) => drop(status.normal.insert(owner, error.clone())),
                (Role::Uplink, None) => status.uplinks.push(name),
                (Role::Uplink, Some(_)) => {}
            }
        }
        drop(status);
        self.failed = failed;
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

    fn receive(&mut self, links: Vec<String>) {
        self.links = Some(links);
    }

    fn reconcile(&mut self) -> Result<Option<Applied>> {
        if self.links.is_none() {
            return Ok(None);
        }
        sysctls::make_conntrack_liberal()?;
        let links = link::list(&mut self.host.route)?;
        let disciplines = tc::list_all(&mut self.host.route)?;
        self.note_devices(&links)?;
        let devices = self.choose(&links, &disciplines);
        let keep = |index: u32| devices.fast.contains_key(&index);
        for device in attach::detach_others(&mut self.host, &links, &disciplines, keep)? {
            debug!(device, "programs removed");
        }
        let failed = self.attach(&devices, &disciplines)?;
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
        match outcome {
            Ok(Some(applied)) => self.report_applied(applied),
            Ok(None) => locked(&self.status).reason = Some("the uplinks are not known yet".into()),
            Err(error) => {
                let reason = Some(error.to_string());
                let mut status = locked(&self.status);
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
        let pod_links = self.links.as_deref().unwrap_or_default();
        let mut wait = |until: Instant| *pending = Some(pending.map_or(until, |other| other.min(until)));
        let links_complete = self.link_events.drain(|frame| {
            if let Some(discipline) = Discipline::read(frame) {
                if seen.contains_key(&discipline.link) && discipline.kind != attach::CLSACT {
                    wait(now);
                }
                return;
            }
            let Some(link) = Link::read(frame) else { return };
            changed |= pod_links.contains(&link.name);
            if link::is_deletion(frame) {
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
