//! UDP flows to endpoints that are gone, and from clients that the source ranges no longer admit.
//!
//! The kernel translates all packets of a flow as it did the first. A client that keeps sending from one port would never
//! reach a new endpoint: its flow lives as long as packets arrive. TCP clients notice that their endpoint is gone, so their
//! connections are left to end by themselves.
//!
//! The source ranges, too, are checked for the first packet of a flow only. A client that sends and gets no replies would
//! never be stopped by narrower ranges.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use podwire_ip::IpFamily;
use podwire_netlink::ct::{self, Connection};
use podwire_netlink::nft::IpTerms;
use podwire_netlink::Socket;
use podwire_policy::Protocol;

use crate::{Backend, Changes, Desired, Error, Frontend, Result};

/// Deletes stale flows from conntrack.
#[derive(Debug)]
pub struct StaleFlows {
    socket: Socket,
    /// The UDP frontends whose flows were checked; `None` before the first check.
    checked: Option<BTreeMap<Frontend, Arc<Backend>>>,
}

impl StaleFlows {
    /// For the network namespace of the calling thread.
    pub fn open() -> Result<StaleFlows> {
        Ok(StaleFlows { socket: Socket::netfilter()?, checked: None })
    }

    /// Whether there may be flows to delete: UDP frontends have changed, or were never checked.
    pub fn may_exist(&self, desired: &Desired, changes: &Changes) -> bool {
        self.checked.is_none() || !self.changed(desired, changes).is_empty()
    }

    /// The UDP frontends that are new or gone, or whose serving endpoints or source ranges have changed.
    fn changed(&self, desired: &Desired, changes: &Changes) -> BTreeSet<Frontend> {
        let none = BTreeMap::new();
        let (checked, changes) = match &self.checked {
            Some(checked) => (checked, changes),
            None => (&none, &Changes::All),
        };
        let mut changed = changes.frontends(checked, &desired.frontends);
        changed.retain(|frontend| {
            let [before, after] = [checked, &desired.frontends].map(|all| all.get(frontend));
            let compared = |backend| {
                let Backend { serving_endpoints, source_ranges, .. }: &Backend = backend;
                (serving_endpoints, source_ranges)
            };
            let [before, after] = [before, after].map(|one| one.map(|backend| compared(backend)));
            frontend.protocol == Protocol::Udp && before != after
        });
        changed
    }

    /// Deletes the flows to UDP frontends that are gone, those whose endpoint no longer serves, and those of clients
    /// outside of the source ranges. The state differs from that of the last call in these parts. The kernel must have the
    /// state already: otherwise the next packet would go to the same endpoint. Returns their number.
    pub fn delete(&mut self, desired: &Desired, changes: &Changes) -> Result<usize> {
        if !self.may_exist(desired, changes) {
            return Ok(0);
        }
        let changed = self.changed(desired, changes);
        let none = BTreeMap::new();
        let check = Check { before: self.checked.as_ref().unwrap_or(&none), desired };
        let mut stale = Vec::new();
        for family in IpFamily::ALL {
            let flows = ct::list(&mut self.socket, family.packet_family(), |flow| check.makes_stale(flow));
            stale.extend(flows.map_err(Error::StaleFlows)?);
        }
        ct::forget(&mut self.socket, &stale).map_err(Error::StaleFlows)?;
        let checked = self.checked.get_or_insert_default();
        for frontend in changed {
            match desired.frontends.get(&frontend) {
                Some(backend) => _ = checked.insert(frontend, backend.clone()),
                None => _ = checked.remove(&frontend),
            }
        }
        Ok(stale.len())
    }
}

/// What decides whether a flow is stale.
struct Check<'a> {
    /// The UDP frontends at the last check.
    before: &'a BTreeMap<Frontend, Arc<Backend>>,
    desired: &'a Desired,
}

impl Check<'_> {
    fn makes_stale(&self, flow: &Connection) -> bool {
        if flow.protocol != Protocol::Udp.number() {
            return false;
        }
        let (ip, port) = (flow.sent_to.ip(), flow.sent_to.port());
        let frontend = Frontend { ip, protocol: Protocol::Udp, port };
        match self.desired.frontends.get(&frontend) {
            Some(backend) => !backend.serving_endpoints.contains(&flow.to) || !backend.admits(flow.from.ip()),
            // Its Service is gone: since the last check, or before the agent started.
            None => {
                self.before.contains_key(&frontend)
                    || self.desired.service_cidrs.iter().any(|cidr| cidr.contains(&ip))
            }
        }
    }
}
