//! What a controller is told when it is started.

use std::net::SocketAddr;
use std::time::Duration;

use crate::{ClusterCidrs, Error, LeakCollection, Result};

/// Everything but the way to the API server.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What nodes' ranges are cut from, if ranges are given at all.
    pub cluster_cidrs: Option<ClusterCidrs>,
    /// The store of blocks in which leaked addresses are looked for, if there is one.
    pub leak_collection: Option<LeakCollection>,
    /// How it is decided who works. `None`: this one does, and no other may run.
    pub leader_election: Option<LeaderElection>,
    /// Where health and metrics are served, if anywhere.
    pub health_address: Option<SocketAddr>,
}

/// How controllers agree on one: the flags `--leader-elect-…` of all of Kubernetes' components.
#[derive(Clone, Debug)]
pub struct LeaderElection {
    /// The Lease object's namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// This controller, among all.
    pub identity: String,
    /// How long others wait for a leader that is not heard of.
    pub lease: Duration,
    /// How long a leader that cannot renew goes on working.
    pub renew_deadline: Duration,
    /// How often all of them try.
    pub retry: Duration,
}

impl LeaderElection {
    /// Refuses times that would let two work at once, or none.
    pub fn checked(self) -> Result<LeaderElection> {
        let refused = |flag, why: &str| Err(Error::Flag { flag, why: why.into() });
        // The object counts whole seconds.
        if self.lease < Duration::from_secs(1) || self.lease.subsec_nanos() != 0 {
            return refused("--leader-elect-lease-duration", "it must be whole seconds, and at least one");
        }
        if self.lease <= self.renew_deadline {
            let why = "it must be longer than --leader-elect-renew-deadline: a leader must stop before another begins";
            return refused("--leader-elect-lease-duration", why);
        }
        if self.renew_deadline < self.retry.mul_f64(1.2) {
            let why = "it must be at least 1.2 times --leader-elect-retry-period, so that one try fits in";
            return refused("--leader-elect-renew-deadline", why);
        }
        Ok(self)
    }

    /// How long a question that changes something may take: when the answer is awaited no more, the lease still has not
    /// ended, so the next leader sees what came of it.
    pub(crate) fn patience(&self) -> Duration {
        self.lease - self.renew_deadline
    }
}

/// A name for one run of the program: the host's, and something that no other run has.
pub(crate) fn identity() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let random = getrandom::u64().unwrap_or_else(|_| u64::from(std::process::id()));
    format!("{}_{random:016x}", host.trim())
}

impl Default for LeaderElection {
    fn default() -> LeaderElection {
        LeaderElection {
            namespace: "kube-system".into(),
            name: "podwire-controller".into(),
            identity: identity(),
            lease: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry: Duration::from_secs(2),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(lease: u64, deadline: u64, retry: u64) -> Result<LeaderElection, String> {
        let time = Duration::from_millis;
        let (lease, renew_deadline, retry) = (time(lease), time(deadline), time(retry));
        let asked = LeaderElection { lease, renew_deadline, retry, ..LeaderElection::default() };
        asked.checked().map_err(|error| error.to_string())
    }

    #[test]
    fn a_leader_stops_before_another_begins() {
        assert_eq!(times(15_000, 10_000, 2_000).unwrap().patience(), Duration::from_secs(5));
        for (lease, deadline, retry, sentence) in [
            (10_000, 10_000, 2_000, "--leader-elect-lease-duration: it must be longer than"),
            (15_000, 2_000, 2_000, "--leader-elect-renew-deadline: it must be at least 1.2 times"),
            (1_500, 1_000, 200, "--leader-elect-lease-duration: it must be whole seconds"),
            (500, 400, 100, "--leader-elect-lease-duration: it must be whole seconds"),
        ] {
            let refusal = times(lease, deadline, retry).unwrap_err();
            assert!(refusal.starts_with(sentence), "{refusal}");
        }
    }

    #[test]
    fn no_two_runs_have_the_same_name() {
        assert_ne!(identity(), identity());
    }
}
