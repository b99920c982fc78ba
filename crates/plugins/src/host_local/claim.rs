//! Which address a pod gets: the one that it asks for, the one that it had, or the next that is free.

use std::collections::HashSet;
use std::net::IpAddr;

use podwire_cni_plugin::Result;
use podwire_cni_spec::{code, Error};
use podwire_ipam::{Candidate, RangeSet};

use super::config::Config;
use super::entry::{Holder, Owner};
use super::history::History;
use super::store::{failed, Store};

/// How many addresses in a row may be taken before the folder is listed.
const PATIENCE: usize = 32;

/// What `cooldown` and `sticky` know.
#[derive(Debug)]
pub(super) struct Memory {
    history: History,
    cooldown: u64,
    /// The pod by its name, if addresses are to be its own.
    pod: Option<String>,
    sticky: bool,
    now: u64,
}

/// One that gives addresses of a network to an owner.
pub(super) struct Claimant<'a> {
    pub(super) store: &'a Store,
    pub(super) owner: &'a Owner,
    pub(super) memory: Option<&'a Memory>,
}

impl Memory {
    /// What the config needs to be remembered; nothing, mostly.
    pub(super) fn read(config: &Config, now: u64) -> Result<Option<Memory>> {
        if config.cooldown == 0 && !config.sticky {
            return Ok(None);
        }
        let history = History::read(&config.folder).map_err(failed("read the history of", &config.folder))?;
        let (cooldown, sticky, pod) = (config.cooldown, config.sticky, config.pod.clone());
        Ok(Some(Memory { history, cooldown, pod, sticky, now }))
    }

    /// The addresses of `set` that are free and not to be given yet.
    pub(super) fn cooling<'s>(&'s self, set: &'s RangeSet) -> impl Iterator<Item = IpAddr> + 's {
        self.history.cooling(self.now, self.cooldown).filter(|ip| set.offers(*ip))
    }

    fn is_cooling(&self, ip: IpAddr) -> bool {
        self.history.is_cooling(ip, self.now, self.cooldown)
    }

    fn is_anothers(&self, ip: IpAddr) -> bool {
        self.sticky && self.history.is_anothers(ip, self.pod.as_deref())
    }

    /// The addresses of `set` that the pod had.
    fn own(&self, set: &RangeSet) -> Vec<IpAddr> {
        let had = self.pod.as_deref().map(|pod| self.history.addresses_of(pod)).unwrap_or_default();
        had.into_iter().filter(|ip| set.contains(*ip)).collect()
    }

    /// Writes down that the pod has these addresses now, each in the place of others of its set.
    pub(super) fn keep(mut self, config: &Config, ips: &[IpAddr]) -> Result<()> {
        if let Some(pod) = self.pod.clone() {
            for (set, ip) in config.sets.iter().zip(ips) {
                let others = self.own(set);
                self.history.give(*ip, &pod, &others);
            }
        }
        let (now, cooldown) = (self.now, self.cooldown);
        let matters =
            |released: Option<u64>| released.is_some_and(|released| now.saturating_sub(released) < cooldown);
        self.history.save(matters).map_err(failed("write the history of", &config.folder))
    }
}

impl Claimant<'_> {
    /// The address that was asked for. Neither a cooldown nor another pod's memory keeps it back.
    pub(super) fn requested<'s>(&self, set: &'s RangeSet, ip: IpAddr) -> Result<Candidate<'s>> {
        if let (Some(range), true) = (set.find(ip), self.store.claim(ip, self.owner)?) {
            return Ok(Candidate { ip, range });
        }
        let holder = self.store.holder(ip)?.unwrap_or(Holder::Stranger);
        let text = format!("requested IP address {ip} is not available in range set {set}");
        let hint = format!("it belongs to {holder} ({})", self.store.file(ip).display());
        Err(Error::internal(text).with_details(hint).into())
    }

    /// The address that the pod had, else the first free one behind the one that was given last; one that another pod
    /// may come back for only when there is no other.
    pub(super) fn next<'s>(&self, set: &'s RangeSet, last: Option<IpAddr>) -> Result<Candidate<'s>> {
        let Some(memory) = self.memory else {
            return self.walk(set, last, |_| false)?.ok_or_else(|| exhausted(set, 0, code::TRY_AGAIN).into());
        };
        for ip in memory.own(set).into_iter().filter(|ip| set.offers(*ip)) {
            if let (Some(range), true) = (set.find(ip), self.store.claim(ip, self.owner)?) {
                return Ok(Candidate { ip, range });
            }
        }
        let fresh = self.walk(set, last, |ip| memory.is_cooling(ip) || memory.is_anothers(ip))?;
        let found = match fresh {
            None if memory.sticky => self.walk(set, last, |ip| memory.is_cooling(ip))?,
            fresh => fresh,
        };
        found.ok_or_else(|| exhausted(set, memory.cooling(set).count(), code::TRY_AGAIN).into())
    }

    fn walk<'s>(
        &self,
        set: &'s RangeSet,
        last: Option<IpAddr>,
        avoid: impl Fn(IpAddr) -> bool,
    ) -> Result<Option<Candidate<'s>>> {
        let mut taken: Option<HashSet<IpAddr>> = None;
        for (tried, candidate) in set.after(last).enumerate() {
            if tried == PATIENCE {
                taken = Some(self.store.taken()?);
            }
            let is_taken = taken.as_ref().is_some_and(|taken| taken.contains(&candidate.ip));
            if !is_taken && !avoid(candidate.ip) && self.store.claim(candidate.ip, self.owner)? {
                return Ok(Some(candidate));
            }
        }
        Ok(None)
    }
}

/// No address is left in a set, or none but those that were given back a moment ago.
pub(super) fn exhausted(set: &RangeSet, cooling: usize, code: u32) -> Error {
    let cooled = match cooling {
        0 => String::new(),
        some => format!(", {some} of them by pods that are gone, until ipam.cooldown is over"),
    };
    Error::new(code, format!("no IP addresses available in range set: {set}")).with_details(format!(
        "all {} are taken{cooled}: remove containers, have the runtime run GC if they are gone already, or add a range",
        set.size()
    ))
}
