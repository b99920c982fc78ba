//! What a server gave: an address for a time, and how to use it.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Time since the boot. Unlike the clock on the wall nobody turns it, and it counts on while the machine sleeps.
pub type Moment = Duration;

/// For ever, in a lease.
pub const FOREVER: u32 = u32::MAX;
/// `RT_SCOPE_LINK`: a destination on the wire itself.
const ON_THE_WIRE: u32 = 253;

/// An address and all that came with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The address, with the length of its subnet's prefix.
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
    /// Who gave it.
    pub server: Server,
    /// For how long.
    pub times: Times,
}

/// A route of a grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Where it leads.
    pub dst: IpNet,
    /// The router; without one the destination is on the wire.
    pub gateway: Option<IpAddr>,
}

/// A DHCP server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Server {
    /// By what it calls itself: an IPv4 address, or a DUID.
    pub id: Vec<u8>,
    /// The hardware address from which its last answer came: its own, or that of the router before it.
    pub mac: Option<[u8; 6]>,
}

/// The times of a lease, in seconds from its beginning; [`FOREVER`] never comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// When to ask the server that gave it for more time.
    pub renew: u32,
    /// When to ask any server.
    pub rebind: u32,
    /// When it ends.
    pub end: u32,
}

impl Times {
    /// Times that make sense: what the server left out or mixed up is the RFCs' share of the whole.
    pub fn sensible(renew: Option<u32>, rebind: Option<u32>, end: u32) -> Times {
        if end == FOREVER {
            return Times { renew: FOREVER, rebind: FOREVER, end };
        }
        let share = |eighths: u64| (u64::from(end) * eighths / 8) as u32;
        let rebind = rebind.filter(|rebind| (1..end).contains(rebind)).unwrap_or(share(7));
        let renew = renew.filter(|renew| (1..rebind).contains(renew)).unwrap_or(share(4).min(rebind));
        Times { renew, rebind, end }
    }
}

/// A grant, and since when it is ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// What was given.
    pub grant: Grant,
    /// When the server was asked for it.
    pub since: Moment,
}

impl Held {
    /// When to ask the same server.
    pub fn renew(&self) -> Option<Moment> {
        self.at(self.grant.times.renew)
    }

    /// When to ask any server.
    pub fn rebind(&self) -> Option<Moment> {
        self.at(self.grant.times.rebind)
    }

    /// When it ends.
    pub fn end(&self) -> Option<Moment> {
        self.at(self.grant.times.end)
    }

    fn at(&self, seconds: u32) -> Option<Moment> {
        (seconds != FOREVER).then(|| self.since + Duration::from_secs(seconds.into()))
    }
}

/// Grants of an attachment as a CNI result of version 1.1.0. `priority` is the metric of all routes.
pub fn result(grants: &[&Grant], priority: Option<u32>) -> Result<Value, podwire_cni_spec::Error> {
    let mut all = podwire_cni_spec::Attachment::default();
    for grant in grants {
        all.ips.push(podwire_cni_spec::Ip {
            gateway: grant.gateway,
            ..podwire_cni_spec::Ip::new(grant.address)
        });
        all.routes.extend(grant.routes.iter().map(|route| podwire_cni_spec::Route {
            priority,
            scope: route.gateway.is_none().then_some(ON_THE_WIRE),
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
    fn times_that_make_no_sense_are_replaced() {
        let times = |renew, rebind, end| Times { renew, rebind, end };
        assert_eq!(Times::sensible(None, None, 80), times(40, 70, 80));
        assert_eq!(Times::sensible(Some(10), Some(20), 80), times(10, 20, 80));
        assert_eq!(Times::sensible(Some(0), Some(0), 80), times(40, 70, 80));
        assert_eq!(Times::sensible(Some(90), Some(100), 80), times(40, 70, 80));
        assert_eq!(Times::sensible(Some(30), Some(20), 80), times(20, 20, 80));
        assert_eq!(Times::sensible(Some(1), None, FOREVER), times(FOREVER, FOREVER, FOREVER));
        assert_eq!(Times::sensible(None, None, FOREVER - 1).renew, FOREVER / 2);
    }
}
