//! The desired state as the sum of what follows from each Service. A change of a Service costs what this Service has, not
//! what all have.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::changes::Changes;
use crate::compiled::Compiled;
use crate::endpoint_services::EndpointServices;
use crate::frontends::{Backend, Frontend};
use crate::health::HealthCheck;
use crate::objects::{describe, Kind, ObjectName};
use crate::owners::{Owners, Rank};
use crate::without_local::PortsWithoutLocal;
use crate::{Desired, Problem};

/// All Services together.
#[derive(Debug)]
pub(crate) struct Merged {
    /// The state, except the networks and the mistakes.
    pub desired: Desired,
    /// What has changed in it.
    pub changes: Changes,
    /// The Service ports without an endpoint of this node.
    pub without_local: PortsWithoutLocal,
    /// The Services of each endpoint.
    pub endpoint_services: EndpointServices,
    frontends: Owners<Frontend, Arc<Backend>>,
    health_checks: Owners<u16, HealthCheck>,
    cluster_ips: Counts,
    local_endpoint_ips: Counts,
    problems: BTreeMap<Subject, Vec<Problem>>,
}

/// How many Services have an address.
type Counts = BTreeMap<IpAddr, usize>;

/// What mistakes belong to.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    Service(ObjectName),
    Frontend(Frontend),
    HealthCheck(u16),
}

impl Default for Merged {
    fn default() -> Merged {
        Merged {
            desired: Desired::default(),
            changes: Changes::none(),
            without_local: PortsWithoutLocal::default(),
            endpoint_services: EndpointServices::default(),
            frontends: Owners::default(),
            health_checks: Owners::default(),
            cluster_ips: Counts::new(),
            local_endpoint_ips: Counts::new(),
            problems: BTreeMap::new(),
        }
    }
}

impl Merged {
    /// Replaces a Service. `before` is what was added for it.
    pub fn replace(&mut self, name: &ObjectName, before: &Compiled, after: &Compiled) {
        for (rank, claim) in before.claims(name) {
            self.frontends.remove(&claim.frontend, &rank);
        }
        for (rank, claim) in after.claims(name) {
            self.frontends.add(claim.frontend, rank, claim.backend.clone());
        }
        if let Some((port, _)) = &before.health_check {
            self.health_checks.remove(port, &before.health_check_rank(name));
        }
        if let Some((port, answer)) = &after.health_check {
            self.health_checks.add(*port, after.health_check_rank(name), answer.clone());
        }
        for service in [before, after] {
            service.claims(name).for_each(|(_, claim)| self.decide_frontend(claim.frontend));
            service.health_check.iter().for_each(|(port, _)| self.decide_health_check(*port));
        }
        self.replace_ips(before, after);
        self.endpoint_services.replace(&before.endpoints, &after.endpoints);
        self.set_problems(Subject::Service(name.clone()), after.problems.clone());
    }

    /// All mistakes.
    pub fn problems(&self) -> impl Iterator<Item = &Problem> {
        self.problems.values().flatten()
    }

    fn decide_frontend(&mut self, frontend: Frontend) {
        let owner = self.frontends.owner(&frontend);
        let backend = owner.map(|(_, backend)| backend);
        if self.desired.frontends.get(&frontend) != backend {
            let before = match backend {
                Some(backend) => self.desired.frontends.insert(frontend, backend.clone()),
                None => self.desired.frontends.remove(&frontend),
            };
            self.without_local.replace(&frontend, before.as_deref(), backend.map(Arc::as_ref));
            self.changes.add_frontend(frontend);
        }
        let Some((owner, _)) = owner else {
            return self.set_problems(Subject::Frontend(frontend), Vec::new());
        };
        // The external address of a Service is also that of its load balancer.
        let is_mistake = |rank: &&Rank| rank.service != owner.service || rank.kind == owner.kind;
        let text =
            || format!("{frontend} belongs to Service {}; it is not served for this one", owner.service);
        let others = self.frontends.others(&frontend).filter(is_mistake);
        let problems =
            others.map(|rank| Problem::new(describe(Kind::Service, &rank.service), text())).collect();
        self.set_problems(Subject::Frontend(frontend), problems);
    }

    fn decide_health_check(&mut self, port: u16) {
        let Some((owner, answer)) = self.health_checks.owner(&port) else {
            self.desired.health_checks.remove(&port);
            return self.set_problems(Subject::HealthCheck(port), Vec::new());
        };
        self.desired.health_checks.insert(port, answer.clone());
        let text =
            format!("healthCheckNodePort {port} belongs to Service {}; it is not served", owner.service);
        let others = self.health_checks.others(&port);
        let problems =
            others.map(|rank| Problem::new(describe(Kind::Service, &rank.service), text.clone())).collect();
        self.set_problems(Subject::HealthCheck(port), problems);
    }

    fn replace_ips(&mut self, before: &Compiled, after: &Compiled) {
        let Merged { desired, changes, cluster_ips, local_endpoint_ips, .. } = self;
        let mut replace =
            |counts: &mut Counts, to: &mut BTreeSet<IpAddr>, before: Vec<IpAddr>, after: Vec<IpAddr>| {
                after.iter().for_each(|ip| *counts.entry(*ip).or_default() += 1);
                for ip in &before {
                    if let Some(count) = counts.get_mut(ip) {
                        *count -= 1;
                    }
                }
                for ip in before.into_iter().chain(after) {
                    let is_used = counts.get(&ip).is_some_and(|count| *count > 0);
                    let is_changed = if is_used { to.insert(ip) } else { to.remove(&ip) };
                    if !is_used {
                        counts.remove(&ip);
                    }
                    if is_changed {
                        changes.add_ip(ip);
                    }
                }
            };
        let (old, new) = (before.cluster_ips.clone(), after.cluster_ips.clone());
        replace(cluster_ips, &mut desired.cluster_ips, old, new);
        let [old, new] = [before, after].map(|service| service.local_endpoint_ips.iter().copied().collect());
        replace(local_endpoint_ips, &mut desired.local_endpoint_ips, old, new);
    }

    fn set_problems(&mut self, subject: Subject, problems: Vec<Problem>) {
        if problems.is_empty() {
            self.problems.remove(&subject);
        } else {
            self.problems.insert(subject, problems);
        }
    }
}
