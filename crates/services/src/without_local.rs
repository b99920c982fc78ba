//! The Service ports that drop packets because no endpoint is on this node. They are counted as frontends change.

use std::collections::BTreeMap;

use podwire_policy::Protocol;

use crate::frontends::{Backend, Frontend, Reach, Refusal};

/// The number of Service ports whose policy is `Local` and whose endpoints are all on other nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServicesWithoutLocal {
    /// Because of `internalTrafficPolicy`.
    pub internal: usize,
    /// Because of `externalTrafficPolicy`.
    pub external: usize,
}

/// The Service ports without an endpoint of this node.
#[derive(Debug, Default)]
pub(crate) struct PortsWithoutLocal {
    internal: Ports,
    external: Ports,
}

/// Service ports, each with the number of its frontends that drop packets.
type Ports = BTreeMap<(String, Protocol), usize>;

impl PortsWithoutLocal {
    /// Replaces the backend of a frontend.
    pub fn replace(&mut self, frontend: &Frontend, before: Option<&Backend>, after: Option<&Backend>) {
        let drops = |backend: &&Backend| backend.refusal() == Some(Refusal::Drop);
        if let Some(backend) = after.filter(drops) {
            *self.ports(backend).entry(port(frontend, backend)).or_default() += 1;
        }
        if let Some(backend) = before.filter(drops) {
            let (ports, port) = (self.ports(backend), port(frontend, backend));
            match ports.get_mut(&port) {
                Some(count) if *count > 1 => *count -= 1,
                _ => _ = ports.remove(&port),
            }
        }
    }

    /// Their number.
    pub fn count(&self) -> ServicesWithoutLocal {
        ServicesWithoutLocal { internal: self.internal.len(), external: self.external.len() }
    }

    fn ports(&mut self, backend: &Backend) -> &mut Ports {
        match backend.reach {
            Reach::ClusterIp => &mut self.internal,
            Reach::Cluster | Reach::Local => &mut self.external,
        }
    }
}

/// The ports of a Service for TCP and UDP may have the same name.
fn port(frontend: &Frontend, backend: &Backend) -> (String, Protocol) {
    (backend.service.clone(), frontend.protocol)
}
