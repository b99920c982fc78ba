//! Which parts of the desired state may have changed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::{Backend, Desired, Frontend};

/// The parts of a [`Desired`] state that may differ from an earlier one. Networks are few and always compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changes {
    /// Every part.
    All,
    /// Only these.
    Only {
        /// Added, changed and removed frontends.
        frontends: BTreeSet<Frontend>,
        /// Cluster IPs and addresses of local endpoints, added or removed.
        ips: BTreeSet<IpAddr>,
    },
}

impl Changes {
    /// No part.
    pub fn none() -> Changes {
        Changes::Only { frontends: BTreeSet::new(), ips: BTreeSet::new() }
    }

    /// Adds later changes.
    pub fn add(&mut self, later: Changes) {
        match (&mut *self, later) {
            (Changes::Only { frontends, ips }, Changes::Only { frontends: more, ips: more_ips }) => {
                frontends.extend(more);
                ips.extend(more_ips);
            }
            _ => *self = Changes::All,
        }
    }

    pub(crate) fn add_frontend(&mut self, frontend: Frontend) {
        if let Changes::Only { frontends, .. } = self {
            frontends.insert(frontend);
        }
    }

    pub(crate) fn add_ip(&mut self, ip: IpAddr) {
        if let Changes::Only { ips, .. } = self {
            ips.insert(ip);
        }
    }

    /// The frontends that may differ between two states.
    pub(crate) fn frontends(
        &self,
        before: &BTreeMap<Frontend, Arc<Backend>>,
        after: &BTreeMap<Frontend, Arc<Backend>>,
    ) -> BTreeSet<Frontend> {
        match self {
            Changes::All => before.keys().chain(after.keys()).copied().collect(),
            Changes::Only { frontends, .. } => frontends.clone(),
        }
    }

    /// The cluster IPs and addresses of local endpoints that may differ between two states.
    pub(crate) fn ips(&self, before: &Desired, after: &Desired) -> BTreeSet<IpAddr> {
        match self {
            Changes::All => {
                let of =
                    |state: &Desired| state.cluster_ips.union(&state.local_endpoint_ips).copied().collect();
                let (mut all, more): (BTreeSet<IpAddr>, BTreeSet<IpAddr>) = (of(before), of(after));
                all.extend(more);
                all
            }
            Changes::Only { ips, .. } => ips.clone(),
        }
    }
}
