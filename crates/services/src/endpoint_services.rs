//! Which Service ports an endpoint belongs to: for a thread that sees packets with endpoints, and not where they were sent
//! to.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use podwire_ip::IpFamily;
use podwire_policy::Protocol;

use crate::claims::port_name;
use crate::endpoints::EndpointsByPort;
use crate::objects::ObjectName;
use crate::spec::ServiceSpec;

/// An endpoint of a Service port.
pub(crate) type Entry = (SocketAddr, Protocol, Arc<str>);

/// The endpoints of all Services, ready or not and on any node. Each handle sees the latest state.
#[derive(Clone, Debug, Default)]
pub struct EndpointServices(Arc<Mutex<BTreeSet<Entry>>>);

impl EndpointServices {
    /// The Service ports with this endpoint, sorted: `shop/web:http`. It looks at no other endpoint.
    pub fn of(&self, protocol: Protocol, endpoint: SocketAddr) -> Vec<String> {
        let entries = self.lock();
        let from: Entry = (endpoint, protocol, Arc::from(""));
        let same = entries.range(from..).take_while(|(addr, of, _)| (*addr, *of) == (endpoint, protocol));
        same.map(|(.., service)| service.to_string()).collect()
    }

    /// Replaces the endpoints of one Service.
    pub(crate) fn replace(&self, before: &[Entry], after: &[Entry]) {
        if before == after {
            return;
        }
        let mut entries = self.lock();
        before.iter().for_each(|entry| _ = entries.remove(entry));
        entries.extend(after.iter().cloned());
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The endpoints of one Service.
pub(crate) fn entries(name: &ObjectName, spec: &ServiceSpec, endpoints: &EndpointsByPort) -> Vec<Entry> {
    let mut all = Vec::new();
    for port in &spec.ports {
        let service: Arc<str> = port_name(name, port).into();
        for cluster_ip in &spec.cluster_ips {
            let key = (port.name.clone(), port.protocol, IpFamily::of(*cluster_ip));
            let endpoints = endpoints.get(&key).into_iter().flatten();
            all.extend(endpoints.map(|endpoint| (endpoint.addr, port.protocol, service.clone())));
        }
    }
    all
}
