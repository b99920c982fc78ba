//! Leader election with a Lease object, as in all Kubernetes components.
//!
//! The holder renews the lease every few seconds. A controller that sees no renewal for the lease's duration takes it;
//! the API server lets only one of several win. No two clocks are compared: each controller measures, with its own
//! clock, how long the object has not changed. A holder that cannot renew stops before another controller may begin.

use std::future::Future;
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::lease_deadline::LeaseDeadline;
use crate::status::StatusHandle;
use crate::{Error, LeaderElection, Result};

/// The HTTP status code of a write that another controller has overtaken.
const CONFLICT: u16 = 409;

/// This controller's part in the election.
pub(crate) struct Election {
    api: Api<Lease>,
    settings: LeaderElection,
    status: StatusHandle,
    view: LeaseView,
}

/// The Lease object as it was last read, and since when it has not changed.
#[derive(Debug, Default)]
struct LeaseView {
    spec: LeaseSpec,
    since: Option<Instant>,
}

/// The outcome of an attempt to take or renew the lease.
enum Attempt {
    /// This controller holds the lease. The attempt began at this time.
    Held(Instant),
    /// Another controller holds it.
    HeldBy(String),
}

impl Election {
    pub fn new(client: Client, settings: LeaderElection, status: StatusHandle) -> Election {
        let api = Api::namespaced(client, &settings.namespace);
        Election { api, settings, status, view: LeaseView::default() }
    }

    /// Waits until this controller holds the lease.
    pub async fn acquire(&mut self) -> LeaseDeadline {
        let mut logged = None;
        loop {
            match self.attempt().await {
                Ok(Attempt::Held(began)) => {
                    info!(
                        identity = self.settings.identity,
                        lease = self.settings.name,
                        "acquired the lease"
                    );
                    return LeaseDeadline::at(began + self.settings.renew_deadline);
                }
                Ok(Attempt::HeldBy(holder)) => {
                    self.status.set_standby(&holder);
                    if logged.as_ref() != Some(&holder) {
                        info!(leader = holder, "on standby");
                        logged = Some(holder);
                    }
                }
                Err(error) => self.report(&error),
            }
            sleep(self.settings.retry_period).await;
        }
    }

    /// Renews the lease until it is lost. Returns why.
    pub async fn renew(&mut self, deadline: &LeaseDeadline) -> String {
        loop {
            let left =
                deadline.end().map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            sleep(self.settings.retry_period.min(left)).await;
            if !deadline.is_held() {
                return format!("the lease could not be renewed within {:?}", self.settings.renew_deadline);
            }
            match self.attempt().await {
                Ok(Attempt::Held(began)) => {
                    self.status.clear_lease_error();
                    deadline.extend(began + self.settings.renew_deadline);
                }
                Ok(Attempt::HeldBy(holder)) => return format!("{holder} has taken the lease"),
                Err(error) => self.report(&error),
            }
        }
    }

    /// Releases the lease, so that another controller takes over at once.
    pub async fn release(&mut self) {
        let release = async {
            let Some(mut lease) = self.get().await? else { return Ok(()) };
            if holder(lease.spec.as_ref()) != Some(&self.settings.identity) {
                return Ok(());
            }
            let now = MicroTime(Timestamp::now());
            let spec = lease.spec.get_or_insert_default();
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(1);
            (spec.renew_time, spec.acquire_time) = (Some(now.clone()), Some(now));
            self.put(&lease).await.map(drop)
        };
        match release.await {
            Ok(()) => info!(lease = self.settings.name, "released the lease"),
            Err(error) => warn!(%error, "lease not released: other controllers wait until it ends"),
        }
    }

    /// Takes or renews the lease if no other controller holds it.
    async fn attempt(&mut self) -> Result<Attempt> {
        let began = Instant::now();
        let Some(mut lease) = self.get().await? else { return self.create(began).await };
        self.view.observe(lease.spec.as_ref(), began);
        if let Some(other) = self.view.other_holder(&self.settings.identity, began) {
            return Ok(Attempt::HeldBy(other));
        }
        lease.spec = Some(self.view.taken(&self.settings));
        match self.put(&lease).await? {
            Some(lease) => {
                self.view.observe(lease.spec.as_ref(), began);
                Ok(Attempt::Held(began))
            }
            None => Ok(Attempt::HeldBy("another controller".into())),
        }
    }

    async fn create(&mut self, began: Instant) -> Result<Attempt> {
        let metadata = ObjectMeta { name: Some(self.settings.name.clone()), ..ObjectMeta::default() };
        let lease = Lease { metadata, spec: Some(LeaseView::default().taken(&self.settings)) };
        let doing = format!("create lease {}/{}", self.settings.namespace, self.settings.name);
        match self.request(&doing, self.api.create(&PostParams::default(), &lease)).await? {
            Some(lease) => {
                self.view.observe(lease.spec.as_ref(), began);
                Ok(Attempt::Held(began))
            }
            None => Ok(Attempt::HeldBy("another controller".into())),
        }
    }

    async fn get(&self) -> Result<Option<Lease>> {
        let doing = format!("get lease {}/{}", self.settings.namespace, self.settings.name);
        Ok(self.request(&doing, self.api.get_opt(&self.settings.name)).await?.flatten())
    }

    /// Writes the object, which carries the version that was read. `None` if another controller was faster.
    async fn put(&self, lease: &Lease) -> Result<Option<Lease>> {
        let doing = format!("update lease {}/{}", self.settings.namespace, self.settings.name);
        let (name, params) = (&self.settings.name, PostParams::default());
        self.request(&doing, self.api.replace(name, &params, lease)).await
    }

    /// Sends a request with a time limit. `None` if another controller was faster.
    async fn request<T>(
        &self,
        doing: &str,
        response: impl Future<Output = kube::Result<T>>,
    ) -> Result<Option<T>> {
        // Two requests fit into the renew deadline.
        let limit = self.settings.renew_deadline / 2;
        match timeout(limit, response).await {
            Ok(Ok(value)) => Ok(Some(value)),
            Ok(Err(kube::Error::Api(status))) if status.code == CONFLICT => Ok(None),
            Ok(Err(error)) => Err(Error::kubernetes(doing)(error)),
            Err(_) => {
                Err(Error::Kubernetes { doing: doing.into(), why: format!("no response within {limit:?}") })
            }
        }
    }

    fn report(&self, error: &Error) {
        if self.status.set_lease_error(&error.to_string()) {
            warn!(%error, "leader election failed, retrying");
        }
    }
}

fn holder(spec: Option<&LeaseSpec>) -> Option<&String> {
    spec?.holder_identity.as_ref().filter(|holder| !holder.is_empty())
}

impl LeaseView {
    /// Takes in the object as it was read.
    fn observe(&mut self, spec: Option<&LeaseSpec>, now: Instant) {
        let spec = spec.cloned().unwrap_or_default();
        if self.since.is_none() || self.spec != spec {
            *self = LeaseView { spec, since: Some(now) };
        }
    }

    /// The other controller that holds the lease, unless it has not renewed it for the lease's duration.
    fn other_holder(&self, identity: &str, now: Instant) -> Option<String> {
        let other = holder(Some(&self.spec)).filter(|holder| *holder != identity)?;
        let seconds = self.spec.lease_duration_seconds.unwrap_or_default();
        let lease = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
        let unchanged = self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        (unchanged < lease).then(|| other.clone())
    }

    /// The spec after this controller has taken or renewed the lease.
    fn taken(&self, settings: &LeaderElection) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        let transitions = self.spec.lease_transitions.unwrap_or_default();
        let is_ours = holder(Some(&self.spec)) == Some(&settings.identity);
        LeaseSpec {
            holder_identity: Some(settings.identity.clone()),
            lease_duration_seconds: i32::try_from(settings.lease_duration.as_secs()).ok(),
            acquire_time: self.spec.acquire_time.clone().filter(|_| is_ours).or(Some(now.clone())),
            renew_time: Some(now),
            // The first holder of a new object is no transition.
            lease_transitions: Some(if is_ours || self.since.is_none() {
                transitions
            } else {
                transitions + 1
            }),
            ..self.spec.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(holder: &str, seconds: i32, transitions: i32) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(holder.into()),
            lease_duration_seconds: Some(seconds),
            lease_transitions: Some(transitions),
            renew_time: Some(MicroTime(Timestamp::now())),
            ..LeaseSpec::default()
        }
    }

    fn me() -> LeaderElection {
        LeaderElection { identity: "me".into(), ..LeaderElection::default() }
    }

    #[test]
    fn a_lease_is_held_until_it_is_not_renewed_for_its_duration() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut view = LeaseView::default();
        view.observe(Some(&spec("other", 15, 0)), start);
        assert_eq!(view.other_holder("me", start + 14 * second), Some("other".into()));
        // A renewal restarts the time, whatever the timestamps in the object are.
        view.observe(Some(&spec("other", 15, 0)), start + 14 * second);
        assert_eq!(view.other_holder("me", start + 28 * second), Some("other".into()));
        assert_eq!(view.other_holder("me", start + 29 * second), None);
        assert_eq!(view.other_holder("other", start), None, "its own");
    }

    #[test]
    fn a_released_lease_is_free_at_once() {
        let now = Instant::now();
        let mut view = LeaseView::default();
        view.observe(Some(&spec("", 1, 3)), now);
        assert_eq!(view.other_holder("me", now), None);
        let taken = view.taken(&me());
        assert_eq!((taken.holder_identity.as_deref(), taken.lease_transitions), (Some("me"), Some(4)));
    }

    #[test]
    fn renewing_keeps_the_acquire_time() {
        let now = Instant::now();
        let first = LeaseView::default().taken(&me());
        assert_eq!((first.lease_transitions, first.lease_duration_seconds), (Some(0), Some(15)));
        let mut view = LeaseView::default();
        view.observe(Some(&first), now);
        let second = view.taken(&me());
        assert_eq!((&second.acquire_time, second.lease_transitions), (&first.acquire_time, Some(0)));
    }
}
