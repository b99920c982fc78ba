//! The thread that keeps the programs attached to the devices that may have them.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use podwire_kernel::fast_path::{CLSACT, TABLE};
use podwire_kernel::firewall::forward;
use podwire_kernel::Host;
use podwire_netlink::rt::link::{self, Link};
use podwire_netlink::rt::tc::program::FilterEvent;
use podwire_netlink::rt::tc::Qdisc;
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

/// The shortest time between two reconciles because of devices, for a node whose pods come and go.
pub const PAUSE: Duration = Duration::from_secs(1);

pub(crate) struct FastPathReconciler {
    pause: Duration,
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
    /// Whether the kernel must be asked which devices have programs: events were lost, or another program has changed
    /// filters.
    must_verify: bool,
    /// The time of the last such question. A filter that replaced ours causes no event that says so.
    verified: Instant,
    /// The time of the last reconcile.
    reconciled: Instant,
    /// Whether a reconcile is needed because of devices or qdiscs.
    is_pending: bool,
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
        pause: Duration,
        programs: Arc<Mutex<Programs>>,
        status: Arc<Mutex<Status>>,
    ) -> Result<FastPathReconciler> {
        let (mut link_events, mut rule_events) = (Socket::route()?, Socket::netfilter()?);
        link_events.subscribe(GROUP_LINK)?;
        link_events.subscribe(GROUP_TC)?;
        rule_events.subscribe(nft::GROUP)?;
        Ok(FastPathReconciler {
            pause,
            programs,
            status,
            host: Host::here()?,
            link_events,
            rule_events,
            links: None,
            attached: BTreeMap::new(),
            must_verify: false,
            verified: Instant::now(),
            reconciled: Instant::now(),
            is_pending: false,
            failed: BTreeMap::new(),
        })
    }

    /// Forgets devices that are gone, with their flows.
    fn forget_devices(&mut self, links: &[Link]) -> Result<()> {
        let present: BTreeSet<u32> = links.iter().map(|link| link.index).collect();
        let before = self.attached.len();
        self.attached.retain(|index, _| present.contains(index));
        if self.attached.len() < before {
            locked(&self.programs).forget_flows()?;
        }
        Ok(())
    }

    /// Attaches the programs to the devices that lack them. Returns why it failed, by device.
    fn attach(&mut self, devices: &Devices, qdiscs: &[Qdisc]) -> Result<BTreeMap<String, String>> {
        let holds_programs = |one: &&Qdisc| one.kind == CLSACT;
        let prepared: BTreeSet<u32> = qdiscs.iter().filter(holds_programs).map(|one| one.link).collect();
        self.attached.retain(|index, device| {
            prepared.contains(index) && devices.fast.get(index).is_some_and(|wanted| wanted == device)
        });
        let programs = locked(&self.programs);
        let mut failed = BTreeMap::new();
        for (index, device) in &devices.fast {
            let is_attached = self.attached.contains_key(index);
            if is_attached && !self.must_verify {
                continue;
            }
            match attach::ensure(&mut self.host.route, &programs, *index, device, is_attached) {
                Ok(()) => drop(self.attached.insert(*index, device.clone())),
                // The device was deleted meanwhile.
                Err(Error::Netlink(error)) if error.errno() == Some(libc::ENODEV) => {}
                Err(error) => {
                    self.attached.remove(index);
                    failed.insert(device.name.clone(), error.to_string());
                }
            }
        }
        if std::mem::take(&mut self.must_verify) {
            self.verified = Instant::now();
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
        let Some(pod_links) = self.links.clone() else { return Ok(None) };
        self.must_verify |= self.verified.elapsed() >= RESYNC;
        (self.is_pending, self.reconciled) = (false, Instant::now());
        sysctls::make_conntrack_liberal()?;
        let links = link::list(&mut self.host.route)?;
        let qdiscs = tc::list_all(&mut self.host.route)?;
        self.forget_devices(&links)?;
        let devices = devices::choose(&links, &qdiscs, &pod_links);
        let keep = |index: u32| devices.fast.contains_key(&index);
        for device in attach::detach_others(&mut self.host, &links, &qdiscs, keep)? {
            debug!(device, "programs removed");
        }
        let failed = self.attach(&devices, &qdiscs)?;
        let reason = self.refusal()?;
        let marked = match reason {
            Some(_) => BTreeSet::new(),
            None => devices.marked.clone(),
        };
        if rules::apply(self.host.nft()?, &marked)? && reason.is_some() {
            locked(&self.programs).forget_flows()?;
        }
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

    fn due(&self) -> Option<Instant> {
        (self.is_pending && self.links.is_some()).then_some(self.reconciled + self.pause)
    }

    /// When one of our devices or programs is deleted, the learned flows are forgotten at once: they would lead nowhere, and
    /// the next pod may get the address.
    fn handle_events(&mut self, _: &[bool]) -> Result<bool> {
        let (mut changed, mut gone) = (false, false);
        let (mut pending, mut must_verify) = (self.is_pending, self.must_verify);
        let attached = &mut self.attached;
        let pod_links = self.links.as_deref().unwrap_or_default();
        let links_complete = self.link_events.drain(|frame| {
            if let Some(qdisc) = Qdisc::read(frame) {
                let is_deleted = frame.kind == libc::RTM_DELQDISC;
                // A plugin names the owner of a device after it has added the qdisc for programs.
                pending |= is_deleted || qdisc.kind != CLSACT;
                if is_deleted && qdisc.kind == CLSACT {
                    gone |= attached.remove(&qdisc.link).is_some();
                }
            } else if let Some(filter) = FilterEvent::read(frame) {
                match (filter.is_program, filter.is_deletion) {
                    // The agent's own.
                    (true, false) => {}
                    (true, true) => {
                        pending = true;
                        gone |= attached.remove(&filter.link).is_some();
                    }
                    (false, _) => (pending, must_verify) = (true, true),
                }
            } else if let Some(link) = Link::read(frame) {
                changed |= pod_links.contains(&link.name);
                if link::is_deletion(frame) {
                    gone |= attached.remove(&link.index).is_some();
                } else {
                    // New, or with an owner now, or a port of a bridge.
                    pending |= link.kind == "veth";
                }
            }
        })?;
        self.is_pending = pending || gone;
        let rules_complete = self.rule_events.drain(|frame| {
            changed |= nft::subject(frame).is_some_and(|(table, chain)| {
                table == TABLE || forward::is_administrators(&table, chain.as_deref())
            });
        })?;
        self.must_verify = must_verify || !links_complete;
        if gone || !links_complete {
            locked(&self.programs).forget_flows()?;
        }
        Ok(changed || !links_complete || !rules_complete)
    }
}
