//! UDP flows to endpoints that are gone.
//!
//! The kernel translates all packets of a flow as it did the first. A client that keeps sending from one port would never
//! reach a new endpoint: its flow lives as long as packets arrive. TCP clients notice that their endpoint is gone, so their
//! connections are left to end by themselves.

use std::collections::BTreeMap;
use std::sync::Arc;

use podwire_ip::IpFamily;
use podwire_netlink::ct::{self, Connection};
use podwire_netlink::nft::IpTerms;
use podwire_netlink::Socket;
use podwire_policy::Protocol;

use crate::{Backend, Desired, Error, Frontend, Result};

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

    /// Whether UDP frontends have changed since the last check, so that there may be flows to delete.
    pub fn may_exist(&self, desired: &Desired) -> bool {
        let now = udp_frontends(desired);
        !Changes { before: self.checked.as_ref(), now: &now, desired }.is_empty()
    }

    /// Deletes the flows to UDP frontends that are gone, and those whose endpoint no longer serves. The kernel must have
    /// the state already: otherwise the next packet would go to the same endpoint. Returns their number.
    pub fn delete(&mut self, desired: &Desired) -> Result<usize> {
        let udp = udp_frontends(desired);
        let changes = Changes { before: self.checked.as_ref(), now: &udp, desired };
        if changes.is_empty() {
            return Ok(0);
        }
        let mut stale = Vec::new();
        for family in IpFamily::ALL {
            let flows = ct::list(&mut self.socket, family.packet_family(), |flow| changes.makes_stale(flow));
            stale.extend(flows.map_err(Error::StaleFlows)?);
        }
        ct::forget(&mut self.socket, &stale).map_err(Error::StaleFlows)?;
        self.checked = Some(udp);
        Ok(stale.len())
    }
}

fn udp_frontends(desired: &Desired) -> BTreeMap<Frontend, Arc<Backend>> {
    let udp = desired.frontends.iter().filter(|(frontend, _)| frontend.protocol == Protocol::Udp);
    udp.map(|(frontend, backend)| (*frontend, backend.clone())).collect()
}

/// How the UDP frontends changed since the last check.
struct Changes<'a> {
    before: Option<&'a BTreeMap<Frontend, Arc<Backend>>>,
    now: &'a BTreeMap<Frontend, Arc<Backend>>,
    desired: &'a Desired,
}

impl Changes<'_> {
    /// Whether no flow can have become stale. A new frontend may have flows from before it existed.
    fn is_empty(&self) -> bool {
        let Some(before) = self.before.filter(|before| before.len() == self.now.len()) else { return false };
        before
            .iter()
            .zip(self.now)
            .all(|((old, one), (new, other))| old == new && one.serving_endpoints == other.serving_endpoints)
    }

    fn makes_stale(&self, flow: &Connection) -> bool {
        if flow.protocol != Protocol::Udp.number() {
            return false;
        }
        let (ip, port) = (flow.sent_to.ip(), flow.sent_to.port());
        let frontend = Frontend { ip, protocol: Protocol::Udp, port };
        match self.now.get(&frontend) {
            Some(backend) => !backend.serving_endpoints.contains(&flow.to),
            // Its Service is gone: since the last check, or before the agent started.
            None => {
                self.before.is_some_and(|before| before.contains_key(&frontend))
                    || self.desired.service_cidrs.iter().any(|cidr| cidr.contains(&ip))
            }
        }
    }
}
