//! Who works: the holder of a Lease object, as with all of Kubernetes' components.
//!
//! The holder renews it every few seconds. Whoever sees that it was not renewed for its whole time takes it, and the API server
//! lets only one of several win. No two clocks are compared: a controller counts, by its own, for how long the
//! object has looked the same. A holder that could not renew stops working earlier than others may begin.

use std::future::Future;
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::status::Board;
use crate::tenure::Tenure;
use crate::{Error, LeaderElection, Result};

/// HTTP's word for somebody else having been faster.
const CONFLICT: u16 = 409;

/// One controller's part in the election.
pub(crate) struct Election {
    api: Api<Lease>,
    settings: LeaderElection,
    board: Board,
    sight: Sight,
}

/// The object as it was last seen, and since when it looks like that.
#[derive(Debug, Default)]
struct Sight {
    spec: LeaseSpec,
    since: Option<Instant>,
}

/// What became of a try.
enum Tried {
    /// It is ours, by a question that was asked at this moment.
    Held(Instant),
    /// It is another's, or became so while we asked.
    Theirs(String),
}

impl Election {
    pub fn new(client: Client, settings: LeaderElection, board: Board) -> Election {
        let api = Api::namespaced(client, &settings.namespace);
        Election { api, settings, board, sight: Sight::default() }
    }

    /// Waits until this controller is the one.
    pub async fn win(&mut self) -> Tenure {
        let mut told = None;
        loop {
            match self.attempt().await {
                Ok(Tried::Held(asked)) => {
                    info!(
                        identity = self.settings.identity,
                        lease = self.settings.name,
                        "this controller leads"
                    );
                    return Tenure::until(asked + self.settings.renew_deadline);
                }
                Ok(Tried::Theirs(holder)) => {
                    self.board.stand_by(&holder);
                    if told.as_ref() != Some(&holder) {
                        info!(leader = holder, "standing by");
                        told = Some(holder);
                    }
                }
                Err(error) => self.trouble(&error),
            }
            sleep(self.settings.retry).await;
        }
    }

    /// Renews until that is not possible any more; returns why.
    pub async fn keep(&mut self, tenure: &Tenure) -> String {
        loop {
            let left =
                tenure.end().map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            sleep(self.settings.retry.min(left)).await;
            if !tenure.holds() {
                return format!("the lease could not be renewed for {:?}", self.settings.renew_deadline);
            }
            match self.attempt().await {
                Ok(Tried::Held(asked)) => {
                    self.board.reached();
                    tenure.extend(asked + self.settings.renew_deadline);
                }
                Ok(Tried::Theirs(holder)) => return format!("{holder} has taken the lease"),
                Err(error) => self.trouble(&error),
            }
        }
    }

    /// Lets another begin at once.
    pub async fn release(&mut self) {
        let freed = async {
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
        match freed.await {
            Ok(()) => info!(lease = self.settings.name, "the lease is released"),
            Err(error) => warn!(%error, "the lease is not released: others wait until it ends"),
        }
    }

    /// Takes or renews the lease, if it may be.
    async fn attempt(&mut self) -> Result<Tried> {
        let asked = Instant::now();
        let Some(mut lease) = self.get().await? else { return self.create(asked).await };
        self.sight.look(lease.spec.as_ref(), asked);
        if let Some(other) = self.sight.holder_other_than(&self.settings.identity, asked) {
            return Ok(Tried::Theirs(other));
        }
        lease.spec = Some(self.sight.taken(&self.settings));
        match self.put(&lease).await? {
            Some(lease) => {
                self.sight.look(lease.spec.as_ref(), asked);
                Ok(Tried::Held(asked))
            }
            None => Ok(Tried::Theirs("another".into())),
        }
    }

    async fn create(&mut self, asked: Instant) -> Result<Tried> {
        let metadata = ObjectMeta { name: Some(self.settings.name.clone()), ..ObjectMeta::default() };
        let lease = Lease { metadata, spec: Some(Sight::default().taken(&self.settings)) };
        let doing = format!("create lease {}/{}", self.settings.namespace, self.settings.name);
        match self.answer(&doing, self.api.create(&PostParams::default(), &lease)).await? {
            Some(lease) => {
                self.sight.look(lease.spec.as_ref(), asked);
                Ok(Tried::Held(asked))
            }
            None => Ok(Tried::Theirs("another".into())),
        }
    }

    async fn get(&self) -> Result<Option<Lease>> {
        let doing = format!("get lease {}/{}", self.settings.namespace, self.settings.name);
        Ok(self.answer(&doing, self.api.get_opt(&self.settings.name)).await?.flatten())
    }

    /// Writes it as it is, if nobody else has meanwhile: it carries the version that was read.
    async fn put(&self, lease: &Lease) -> Result<Option<Lease>> {
        let doing = format!("update lease {}/{}", self.settings.namespace, self.settings.name);
        let (name, params) = (&self.settings.name, PostParams::default());
        self.answer(&doing, self.api.replace(name, &params, lease)).await
    }

    /// An answer in time. `None` if somebody else was faster.
    async fn answer<T>(
        &self,
        doing: &str,
        question: impl Future<Output = kube::Result<T>>,
    ) -> Result<Option<T>> {
        // Two questions fit into the time in which a leader must have renewed.
        let patience = self.settings.renew_deadline / 2;
        match timeout(patience, question).await {
            Ok(Ok(answer)) => Ok(Some(answer)),
            Ok(Err(kube::Error::Api(status))) if status.code == CONFLICT => Ok(None),
            Ok(Err(error)) => Err(Error::kubernetes(doing)(error)),
            Err(_) => {
                Err(Error::Kubernetes { doing: doing.into(), why: format!("no answer in {patience:?}") })
            }
        }
    }

    fn trouble(&self, error: &Error) {
        if self.board.trouble(&error.to_string()) {
            warn!(%error, "the election waits");
        }
    }
}

fn holder(spec: Option<&LeaseSpec>) -> Option<&String> {
    spec?.holder_identity.as_ref().filter(|holder| !holder.is_empty())
}

impl Sight {
    /// Looks again: the time counts from when it last changed.
    fn look(&mut self, spec: Option<&LeaseSpec>, now: Instant) {
        let spec = spec.cloned().unwrap_or_default();
        if self.since.is_none() || self.spec != spec {
            *self = Sight { spec, since: Some(now) };
        }
    }

    /// Who else has it, unless nothing was heard of that one for the whole time of the lease.
    fn holder_other_than(&self, identity: &str, now: Instant) -> Option<String> {
        let other = holder(Some(&self.spec)).filter(|holder| *holder != identity)?;
        let seconds = self.spec.lease_duration_seconds.unwrap_or_default();
        let lease = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
        let silent = self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        (silent < lease).then(|| other.clone())
    }

    /// What it will be when it is ours.
    fn taken(&self, settings: &LeaderElection) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        let transitions = self.spec.lease_transitions.unwrap_or_default();
        let is_ours = holder(Some(&self.spec)) == Some(&settings.identity);
        LeaseSpec {
            holder_identity: Some(settings.identity.clone()),
            lease_duration_seconds: i32::try_from(settings.lease.as_secs()).ok(),
            acquire_time: self.spec.acquire_time.clone().filter(|_| is_ours).or(Some(now.clone())),
            renew_time: Some(now),
            // The first holder of a new object comes after nobody.
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
    fn a_lease_is_another_s_until_nothing_was_heard_for_its_time() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut sight = Sight::default();
        sight.look(Some(&spec("other", 15, 0)), start);
        assert_eq!(sight.holder_other_than("me", start + 14 * second), Some("other".into()));
        // It was renewed: the time counts anew, whatever the object says about clocks.
        sight.look(Some(&spec("other", 15, 0)), start + 14 * second);
        assert_eq!(sight.holder_other_than("me", start + 28 * second), Some("other".into()));
        assert_eq!(sight.holder_other_than("me", start + 29 * second), None);
        assert_eq!(sight.holder_other_than("other", start), None, "its own");
    }

    #[test]
    fn a_released_lease_is_free_at_once() {
        let now = Instant::now();
        let mut sight = Sight::default();
        sight.look(Some(&spec("", 1, 3)), now);
        assert_eq!(sight.holder_other_than("me", now), None);
        let taken = sight.taken(&me());
        assert_eq!((taken.holder_identity.as_deref(), taken.lease_transitions), (Some("me"), Some(4)));
    }

    #[test]
    fn renewing_keeps_the_time_of_the_beginning() {
        let now = Instant::now();
        let first = Sight::default().taken(&me());
        assert_eq!((first.lease_transitions, first.lease_duration_seconds), (Some(0), Some(15)));
        let mut sight = Sight::default();
        sight.look(Some(&first), now);
        let second = sight.taken(&me());
        assert_eq!((&second.acquire_time, second.lease_transitions), (&first.acquire_time, Some(0)));
    }
}
