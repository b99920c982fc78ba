//! The controller's settings.

use std::time::Duration;

use podwire_http_server::Listen;

use crate::{ClusterCidrs, Error, LeakCollection, Result};

/// Everything except the client for the API server.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The cluster networks, if the controller assigns pod CIDRs.
    pub cluster_cidrs: Option<ClusterCidrs>,
    /// The block store, if the controller collects leaked addresses.
    pub leak_collection: Option<LeakCollection>,
    /// Leader election. `None`: this controller always leads, and no other may run.
    pub leader_election: Option<LeaderElection>,
    /// Where health and metrics are served, if they are.
    pub health: Option<Listen>,
}

/// Leader election: the flags `--leader-elect-…` of all Kubernetes components.
#[derive(Clone, Debug)]
pub struct LeaderElection {
    /// The Lease object's namespace.
    pub namespace: String,
    /// The Lease object's name.
    pub name: String,
    /// The unique identity of this controller.
    pub identity: String,
    /// How long other controllers wait for a leader that does not renew the lease.
    pub lease_duration: Duration,
    /// How long a leader that cannot renew the lease goes on.
    pub renew_deadline: Duration,
    /// The time between two attempts to acquire or renew the lease.
    pub retry_period: Duration,
}

impl LeaderElection {
    /// Rejects times that would allow two leaders at once, or none.
    pub fn validate(self) -> Result<LeaderElection> {
        let rejected = |flag, why: &str| Err(Error::Flag { flag, why: why.into() });
        // The Lease object counts whole seconds.
        if self.lease_duration < Duration::from_secs(1) || self.lease_duration.subsec_nanos() != 0 {
            return rejected("--leader-elect-lease-duration", "it must be whole seconds, and at least one");
        }
        if self.lease_duration <= self.renew_deadline {
            let why = "it must be longer than --leader-elect-renew-deadline: a leader must stop before another begins";
            return rejected("--leader-elect-lease-duration", why);
        }
        if self.renew_deadline < self.retry_period.mul_f64(1.2) {
            let why =
                "it must be at least 1.2 times --leader-elect-retry-period, so that one attempt fits in";
            return rejected("--leader-elect-renew-deadline", why);
        }
        Ok(self)
    }

    /// The time limit of a request that writes. It ends before the lease does, so that the next leader sees the result.
    pub(crate) fn request_timeout(&self) -> Duration {
        self.lease_duration - self.renew_deadline
    }
}

/// A name for one run of the program: the host's name and a random number.
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
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(lease: u64, deadline: u64, retry: u64) -> Result<LeaderElection, String> {
        let time = Duration::from_millis;
        let (lease_duration, renew_deadline, retry_period) = (time(lease), time(deadline), time(retry));
        let given =
            LeaderElection { lease_duration, renew_deadline, retry_period, ..LeaderElection::default() };
        given.validate().map_err(|error| error.to_string())
    }

    #[test]
    fn a_leader_stops_before_another_begins() {
        assert_eq!(times(15_000, 10_000, 2_000).unwrap().request_timeout(), Duration::from_secs(5));
        for (lease, deadline, retry, text) in [
            (10_000, 10_000, 2_000, "--leader-elect-lease-duration: it must be longer than"),
            (15_000, 2_000, 2_000, "--leader-elect-renew-deadline: it must be at least 1.2 times"),
            (1_500, 1_000, 200, "--leader-elect-lease-duration: it must be whole seconds"),
            (500, 400, 100, "--leader-elect-lease-duration: it must be whole seconds"),
        ] {
            let error = times(lease, deadline, retry).unwrap_err();
            assert!(error.starts_with(text), "{error}");
        }
    }

    #[test]
    fn no_two_runs_have_the_same_name() {
        assert_ne!(identity(), identity());
    }
}
