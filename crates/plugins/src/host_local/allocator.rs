//! Chooses a pod's address: the requested one, the one that the pod had before, or the next free one.

use std::collections::HashSet;
use std::net::IpAddr;

use podwire_cni_plugin::Result;
use podwire_cni_spec::{code, Error};
use podwire_ipam::{Candidate, RangeSet};

use super::config::Config;
use super::entry::{AttachmentId, Holder};
use super::history::History;
use super::store::{io_error, Store};

/// How many candidates to try one by one before the directory is listed.
const MAX_PROBES: usize = 32;

/// The settings `cooldown` and `sticky`, and the history that they need.
#[derive(Debug)]
pub(super) struct ReusePolicy {
    history: History,
    cooldown: u64,
    /// The pod's name, if `sticky` is set and the runtime passes it.
    pod: Option<String>,
    sticky: bool,
    now: u64,
}

/// Assigns addresses of a network to an attachment.
pub(super) struct Allocator<'a> {
    pub(super) store: &'a Store,
    pub(super) owner: &'a AttachmentId,
    pub(super) reuse: Option<&'a ReusePolicy>,
}

impl ReusePolicy {
    /// Reads the history, if the config needs it.
    pub(super) fn read(config: &Config, now: u64) -> Result<Option<ReusePolicy>> {
        if config.cooldown == 0 && !config.sticky {
            return Ok(None);
        }
        let history =
            History::read(&config.folder).map_err(io_error("read the history of", &config.folder))?;
        let (cooldown, sticky, pod) = (config.cooldown, config.sticky, config.pod.clone());
        Ok(Some(ReusePolicy { history, cooldown, pod, sticky, now }))
    }

    /// The free addresses of `set` that are still in their cooldown.
    pub(super) fn cooling<'s>(&'s self, set: &'s RangeSet) -> impl Iterator<Item = IpAddr> + 's {
        self.history.cooling(self.now, self.cooldown).filter(|ip| set.offers(*ip))
    }

    fn is_cooling(&self, ip: IpAddr) -> bool {
        self.history.is_cooling(ip, self.now, self.cooldown)
    }

    fn belonged_to_another(&self, ip: IpAddr) -> bool {
        self.sticky && self.history.belonged_to_another(ip, self.pod.as_deref())
    }

    /// The addresses of `set` that the pod had before.
    fn previous(&self, set: &RangeSet) -> Vec<IpAddr> {
        let had = self.pod.as_deref().map(|pod| self.history.addresses_of(pod)).unwrap_or_default();
        had.into_iter().filter(|ip| set.contains(*ip)).collect()
    }

    /// Records that the pod has these addresses now. They replace its previous addresses of the same set.
    pub(super) fn record(mut self, config: &Config, ips: &[IpAddr]) -> Result<()> {
        if let Some(pod) = self.pod.clone() {
            for (set, ip) in config.sets.iter().zip(ips) {
                let others = self.previous(set);
                self.history.assign(*ip, &pod, &others);
            }
        }
        let (now, cooldown) = (self.now, self.cooldown);
        let is_cooling =
            |released: Option<u64>| released.is_some_and(|released| now.saturating_sub(released) < cooldown);
        self.history.save(is_cooling).map_err(io_error("write the history of", &config.folder))
    }
}

impl Allocator<'_> {
    /// Assigns the requested address, regardless of `cooldown` and `sticky`.
    pub(super) fn requested<'s>(&self, set: &'s RangeSet, ip: IpAddr) -> Result<Candidate<'s>> {
        if let (Some(range), true) = (set.find(ip), self.store.claim(ip, self.owner)?) {
            return Ok(Candidate { ip, range });
        }
        let holder = self.store.holder_of(ip)?.unwrap_or(Holder::Unknown);
        let text = format!("requested IP address {ip} is not available in range set {set}");
        let hint = format!("it belongs to {holder} ({})", self.store.address_path(ip).display());
        Err(Error::internal(text).with_hint(hint).into())
    }

    /// Assigns the address that the pod had, else the first free one after the last assigned address. An address that
    /// another pod had before is assigned only if there is no other.
    pub(super) fn next<'s>(&self, set: &'s RangeSet, last: Option<IpAddr>) -> Result<Candidate<'s>> {
        let Some(reuse) = self.reuse else {
            return self
                .first_free(set, last, |_| false)?
                .ok_or_else(|| exhausted(set, 0, code::TRY_AGAIN).into());
        };
        for ip in reuse.previous(set).into_iter().filter(|ip| set.offers(*ip)) {
            if let (Some(range), true) = (set.find(ip), self.store.claim(ip, self.owner)?) {
                return Ok(Candidate { ip, range });
            }
        }
        let unused =
            self.first_free(set, last, |ip| reuse.is_cooling(ip) || reuse.belonged_to_another(ip))?;
        let found = match unused {
            None if reuse.sticky => self.first_free(set, last, |ip| reuse.is_cooling(ip))?,
            unused => unused,
        };
        found.ok_or_else(|| exhausted(set, reuse.cooling(set).count(), code::TRY_AGAIN).into())
    }

    /// Claims the first free address after `last` that `avoid` does not exclude.
    fn first_free<'s>(
        &self,
        set: &'s RangeSet,
        last: Option<IpAddr>,
        avoid: impl Fn(IpAddr) -> bool,
    ) -> Result<Option<Candidate<'s>>> {
        let mut taken: Option<HashSet<IpAddr>> = None;
        for (tried, candidate) in set.after(last).enumerate() {
            if tried == MAX_PROBES {
                taken = Some(self.store.addresses_with_file()?);
            }
            let is_taken = taken.as_ref().is_some_and(|taken| taken.contains(&candidate.ip));
            if !is_taken && !avoid(candidate.ip) && self.store.claim(candidate.ip, self.owner)? {
                return Ok(Some(candidate));
            }
        }
        Ok(None)
    }
}

/// The error for a set without a free address. `cooling` addresses are free, but still in their cooldown.
pub(super) fn exhausted(set: &RangeSet, cooling: usize, code: u32) -> Error {
    let in_cooldown = match cooling {
        0 => String::new(),
        some => format!(", {some} of them until ipam.cooldown is over"),
    };
    Error::new(code, format!("no IP addresses available in range set: {set}")).with_hint(format!(
        "all {} are taken{in_cooldown}: delete containers, run GC if they are already deleted, or add a range",
        set.size()
    ))
}
