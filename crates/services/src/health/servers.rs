//! Which health servers run where.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use podwire_ip::IpFamily;

use super::listeners::Listeners;
use super::responses::{check_routes, proxy_routes};
use super::server_thread::ServerThread;
use super::state::HealthHandle;
use crate::objects::describe;
use crate::{HealthCheck, Kind, Problem};

/// All addresses, of both families.
pub(crate) const ALL_ADDRESSES: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];

/// The health servers of the node.
#[derive(Debug)]
pub(crate) struct HealthServers {
    health: HealthHandle,
    /// Where `/healthz` and `/livez` are served.
    proxy_addresses: BTreeSet<SocketAddr>,
    proxy: Listeners,
    checks: Listeners,
    _thread: ServerThread,
}

impl HealthServers {
    /// `healthz` is where `/healthz` and `/livez` are served, if they are. The sockets are opened by the first
    /// [`serve_proxy`](Self::serve_proxy) and [`serve_checks`](Self::serve_checks).
    pub fn start(healthz: Option<SocketAddr>, health: HealthHandle) -> io::Result<HealthServers> {
        let thread = ServerThread::start()?;
        Ok(HealthServers {
            health,
            proxy_addresses: healthz.map(proxy_addresses).unwrap_or_default(),
            proxy: Listeners::new(thread.runtime.clone())?,
            checks: Listeners::new(thread.runtime.clone())?,
            _thread: thread,
        })
    }

    /// Serves `/healthz` and `/livez`. Returns why it cannot.
    pub fn serve_proxy(&mut self) -> Option<String> {
        let failures = self.proxy.open(&self.proxy_addresses, |_| proxy_routes(self.health.clone()));
        let (address, error) = failures.into_iter().next()?;
        Some(format!(
            "serve /healthz and /livez at {address}: {error}; it is tried again at intervals. Choose another address with \
             --services-healthz-address, or none"
        ))
    }

    /// Serves the health checks of Services, at `ips` or all addresses of a family. Returns those that cannot be served.
    pub fn serve_checks(&mut self, checks: &BTreeMap<u16, HealthCheck>, ips: &[IpAddr]) -> Vec<Problem> {
        let addresses = |(port, check): (&u16, &HealthCheck)| {
            let of_service = ips.iter().filter(|ip| check.local_endpoints.contains_key(&IpFamily::of(**ip)));
            of_service.map(|ip| SocketAddr::new(*ip, *port)).collect::<Vec<_>>()
        };
        let wanted: BTreeSet<SocketAddr> = checks.iter().flat_map(addresses).collect();
        // A closed port must not answer for another Service, and an open one knows its Service.
        self.checks.close_others(&wanted);
        self.health.lock().checks.clone_from(checks);
        let routes = |at: SocketAddr| check_routes(self.health.clone(), at.port(), IpFamily::of(at.ip()));
        let failures = self.checks.open(&wanted, routes);
        let problem = |(address, error): (SocketAddr, io::Error)| {
            let service = &checks.get(&address.port())?.service;
            let text = format!(
                "healthCheckNodePort cannot be served at {address}: {error}; load balancers get no answer there. It is \
                 tried again at intervals; `ss -ltnp` shows who uses a port"
            );
            Some(Problem::new(describe(Kind::Service, service), text))
        };
        failures.into_iter().filter_map(problem).collect()
    }
}

/// As for kube-proxy, the unspecified address of either family means all addresses of both.
fn proxy_addresses(address: SocketAddr) -> BTreeSet<SocketAddr> {
    let ips = if address.ip().is_unspecified() { ALL_ADDRESSES.to_vec() } else { vec![address.ip()] };
    ips.into_iter().map(|ip| SocketAddr::new(ip, address.port())).collect()
}
