//! A grant of a server: an address, its configuration and its times.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Time since boot. Unlike the wall clock it is never set, and it continues during suspend.
pub type BootTime = Duration;

/// The time of an infinite lease.
pub const FOREVER: u32 = u32::MAX;
/// `RT_SCOPE_LINK`: a destination on the link.
const SCOPE_LINK: u32 = 253;

/// An address and the configuration that came with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The address, with its prefix length.
    pub address: IpNet,
    /// The router of the subnet.
    pub gateway: Option<IpAddr>,
    /// Routes.
    pub routes: Vec<Route>,
    /// Name servers.
    pub nameservers: Vec<IpAddr>,
    /// The local domain.
    pub domain: String,
    /// Domains to try for short names.
    pub search: Vec<String>,
    /// The interface's MTU.
    pub mtu: Option<u32>,
    /// The server.
    pub server: Server,
    /// The times.
    pub times: Times,
}

/// A route of a grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// The destination.
    pub dst: IpNet,
    /// The router; without one the destination is on the link.
    pub gateway: Option<IpAddr>,
}

/// A DHCP server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Server {
    /// Its identifier: an IPv4 address or a DUID.
    pub id: Vec<u8>,
    /// The MAC address from which its last answer came: its own, or that of a relay.
    pub mac: Option<[u8; 6]>,
}

/// The times of a lease, in seconds from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// T1: renew with the same server.
    pub renew: u32,
    /// T2: rebind with any server.
    pub rebind: u32,
    /// When it ends.
    pub end: u32,
}

impl Times {
    /// Uses the RFCs' defaults for T1 and T2 where the server sent none or an invalid one.
    pub fn with_defaults(renew: Option<u32>, rebind: Option<u32>, end: u32) -> Times {
        if end == FOREVER {
            return Times { renew: FOREVER, rebind: FOREVER, end };
        }
        let share = |eighths: u64| (u64::from(end) * eighths / 8) as u32;
        let rebind = rebind.filter(|rebind| (1..end).contains(rebind)).unwrap_or(share(7));
        let renew = renew.filter(|renew| (1..rebind).contains(renew)).unwrap_or(share(4).min(rebind));
        Times { renew, rebind, end }
    }
}

/// A grant and its start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The grant.
    pub grant: Grant,
    /// When the request was sent.
    pub since: BootTime,
}

impl Lease {
    /// When to renew (T1).
    pub fn renew(&self) -> Option<BootTime> {
        self.at(self.grant.times.renew)
    }

    /// When to rebind (T2).
    pub fn rebind(&self) -> Option<BootTime> {
        self.at(self.grant.times.rebind)
    }

    /// When it ends.
    pub fn end(&self) -> Option<BootTime> {
        self.at(self.grant.times.end)
    }

    fn at(&self, seconds: u32) -> Option<BootTime> {
        (seconds != FOREVER).then(|| self.since + Duration::from_secs(seconds.into()))
    }
}

/// The CNI result (version 1.1.0) of an attachment's grants. `priority` is the metric of all routes.
pub fn result(grants: &[&Grant], priority: Option<u32>) -> Result<Value, podwire_cni_spec::Error> {
    let mut all = podwire_cni_spec::Attachment::default();
    for grant in grants {
        all.ips.push(podwire_cni_spec::Ip {
            gateway: grant.gateway,
            ..podwire_cni_spec::Ip::new(grant.address)
        });
        all.routes.extend(grant.routes.iter().map(|route| podwire_cni_spec::Route {
            priority,
            scope: route.gateway.is_none().then_some(SCOPE_LINK),
            ..podwire_cni_spec::Route::new(route.dst, route.gateway)
        }));
        all.dns.nameservers.extend(grant.nameservers.iter().map(ToString::to_string));
        if all.dns.domain.is_empty() {
            all.dns.domain.clone_from(&grant.domain);
        }
        let new = grant.search.iter().filter(|name| !all.dns.search.contains(name)).cloned();
        let new: Vec<_> = new.collect();
        all.dns.search.extend(new);
    }
    all.to_json(podwire_cni_spec::Version::V1_1_0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_times_are_replaced() {
        let times = |renew, rebind, end| Times { renew, rebind, end };
        assert_eq!(Times::with_defaults(None, None, 80), times(40, 70, 80));
        assert_eq!(Times::with_defaults(Some(10), Some(20), 80), times(10, 20, 80));
        assert_eq!(Times::with_defaults(Some(0), Some(0), 80), times(40, 70, 80));
        assert_eq!(Times::with_defaults(Some(90), Some(100), 80), times(40, 70, 80));
        assert_eq!(Times::with_defaults(Some(30), Some(20), 80), times(20, 20, 80));
        assert_eq!(Times::with_defaults(Some(1), None, FOREVER), times(FOREVER, FOREVER, FOREVER));
        assert_eq!(Times::with_defaults(None, None, FOREVER - 1).renew, FOREVER / 2);
    }
}
