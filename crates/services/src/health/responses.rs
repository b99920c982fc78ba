//! kube-proxy's answers: status code, headers and JSON.

use std::time::SystemTime;

use axum::http::header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::Router;
use jiff::Timestamp;
use podwire_ip::IpFamily;
use serde_json::{json, Value};

use super::state::{HealthHandle, HealthState};
use super::sync::Now;

/// The weight of this node for load balancers that can use it.
const WEIGHT: &str = "x-load-balancing-endpoint-weight";
/// What Go writes for a time that is not known.
const NEVER: &str = "0001-01-01T00:00:00Z";

/// The routes of a health check port: every path has the same answer.
pub(super) fn check_routes(health: HealthHandle, port: u16, family: IpFamily) -> Router {
    Router::new().fallback(move || async move { check(&health.lock(), port, family, Now::read()) })
}

/// The routes of kube-proxy's health port.
pub(super) fn proxy_routes(health: HealthHandle) -> Router {
    let (ready, alive) = (health.clone(), health);
    let healthz = move || async move {
        let mut health = ready.lock();
        let answer = healthz(&health, Now::read());
        *health.healthz.entry(answer.status.as_u16()).or_default() += 1;
        answer
    };
    let livez = move || async move {
        let mut health = alive.lock();
        let answer = livez(&health, Now::read());
        *health.livez.entry(answer.status.as_u16()).or_default() += 1;
        answer
    };
    Router::new().route("/healthz", any(healthz)).route("/livez", any(livez))
}

/// An answer in JSON.
#[derive(Debug, PartialEq)]
struct Answer {
    status: StatusCode,
    /// The number of endpoints, if the answer is about a Service.
    weight: Option<usize>,
    body: Value,
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        let headers = [(CONTENT_TYPE, "application/json"), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
        let weight = self.weight.map(|weight| [(WEIGHT, weight.to_string())]);
        match weight {
            Some(weight) => (self.status, headers, weight, self.body.to_string()).into_response(),
            None => (self.status, headers, self.body.to_string()).into_response(),
        }
    }
}

fn status(is_healthy: bool) -> StatusCode {
    if is_healthy {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}

/// Whether this node has ready endpoints of the Service. A port that is being closed has none.
fn check(health: &HealthState, port: u16, family: IpFamily, now: Now) -> Result<Answer, StatusCode> {
    let check = health.checks.get(&port).ok_or(StatusCode::SERVICE_UNAVAILABLE)?;
    let count = check.local_endpoints.get(&family).copied().unwrap_or_default();
    let is_healthy = health.is_healthy(now);
    let body = json!({
        "service": { "namespace": check.service.namespace, "name": check.service.name },
        "localEndpoints": count,
        "serviceProxyHealthy": is_healthy,
    });
    Ok(Answer { status: status(count > 0 && is_healthy), weight: Some(count), body })
}

/// Whether load balancers may send new connections to this node.
fn healthz(health: &HealthState, now: Now) -> Answer {
    let status = status(health.is_healthy(now) && health.node_eligible);
    Answer { status, weight: None, body: proxy_health(health, status, Some(health.node_eligible), now) }
}

/// Whether the Services are up to date.
fn livez(health: &HealthState, now: Now) -> Answer {
    let status = status(health.is_healthy(now));
    Answer { status, weight: None, body: proxy_health(health, status, None, now) }
}

/// One transaction changes both families, so their state is the same.
fn proxy_health(health: &HealthState, status: StatusCode, node_eligible: Option<bool>, now: Now) -> Value {
    let is_healthy = health.is_healthy(now);
    let applied = health.times.last_applied();
    // As in kube-proxy, a node with the status 200 is up to date now, also if nothing has changed for long.
    let last_updated = if status == StatusCode::OK { Some(now.wall) } else { applied };
    let mut body =
        json!({ "lastUpdated": timestamp(last_updated), "currentTime": timestamp(Some(now.wall)) });
    if let Some(node_eligible) = node_eligible {
        body["nodeEligible"] = node_eligible.into();
    }
    body["healthy"] = is_healthy.into();
    if applied.is_some() {
        let family = json!({ "lastUpdated": timestamp(applied), "healthy": is_healthy });
        body["status"] = IpFamily::ALL.into_iter().map(|of| (of.name().to_owned(), family.clone())).collect();
    }
    body
}

fn timestamp(time: Option<SystemTime>) -> String {
    let time = time.and_then(|time| Timestamp::try_from(time).ok());
    time.map_or_else(|| NEVER.to_owned(), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;
    use crate::{HealthCheck, ObjectName};

    /// A time after the start of the test, with a wall clock that starts in 2001.
    fn at(start: Now, seconds: u64) -> Now {
        Now {
            monotonic: start.monotonic + Duration::from_secs(seconds),
            wall: UNIX_EPOCH + Duration::from_secs(1_000_000_000 + seconds),
        }
    }

    fn health(ready: usize) -> HealthState {
        let service = ObjectName { namespace: "shop".into(), name: "web".into() };
        let check =
            HealthCheck { service, local_endpoints: [(IpFamily::V4, ready), (IpFamily::V6, 0)].into() };
        HealthState { checks: [(31000, check)].into(), node_eligible: true, ..HealthState::default() }
    }

    fn text(answer: &Answer) -> String {
        format!("{} {}", answer.status.as_u16(), answer.body)
    }

    #[test]
    fn a_check_needs_a_ready_endpoint_of_the_family_and_a_healthy_proxy() {
        let start = Now::read();
        let mut late = health(2);
        late.times.complete();
        late.times.queued(start);
        let cases = [
            (health(2), IpFamily::V4, 200, 2, true),
            (health(0), IpFamily::V4, 503, 0, true),
            (health(2), IpFamily::V6, 503, 0, true),
            (late, IpFamily::V4, 503, 2, false),
        ];
        for (health, family, code, count, is_healthy) in cases {
            let answer = check(&health, 31000, family, at(start, 60)).unwrap();
            let body = format!(
                r#"{code} {{"service":{{"namespace":"shop","name":"web"}},"localEndpoints":{count},"serviceProxyHealthy":{is_healthy}}}"#
            );
            assert_eq!((text(&answer), answer.weight), (body, Some(count)));
        }
        assert_eq!(check(&health(2), 31001, IpFamily::V4, start), Err(StatusCode::SERVICE_UNAVAILABLE));
    }

    #[test]
    fn headers_are_those_of_kube_proxy() {
        let response = check(&health(2), 31000, IpFamily::V4, Now::read()).unwrap().into_response();
        let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
        assert_eq!(header("content-type"), "application/json");
        assert_eq!(header("x-content-type-options"), "nosniff");
        assert_eq!(header("x-load-balancing-endpoint-weight"), "2");
    }

    #[test]
    fn healthz_depends_on_the_node_and_livez_does_not() {
        let start = Now::read();
        let mut health = health(0);
        // The Services were not applied yet.
        let fresh = r#"200 {"lastUpdated":"2001-09-09T01:46:40Z","currentTime":"2001-09-09T01:46:40Z","nodeEligible":true,"healthy":true}"#;
        assert_eq!(text(&healthz(&health, at(start, 0))), fresh);
        health.times.complete();
        health.times.applied(at(start, 1));
        health.node_eligible = false;
        let family = r#"{"lastUpdated":"2001-09-09T01:46:41Z","healthy":true}"#;
        let status = format!(r#""status":{{"IPv4":{family},"IPv6":{family}}}"#);
        assert_eq!(
            text(&healthz(&health, at(start, 5))),
            format!(
                r#"503 {{"lastUpdated":"2001-09-09T01:46:41Z","currentTime":"2001-09-09T01:46:45Z","nodeEligible":false,"healthy":true,{status}}}"#
            )
        );
        assert_eq!(
            text(&livez(&health, at(start, 5))),
            format!(
                r#"200 {{"lastUpdated":"2001-09-09T01:46:45Z","currentTime":"2001-09-09T01:46:45Z","healthy":true,{status}}}"#
            )
        );
        // A change waits for a minute.
        health.times.queued(at(start, 10));
        health.node_eligible = true;
        let status = status.replace("true", "false");
        assert_eq!(
            text(&livez(&health, at(start, 70))),
            format!(
                r#"503 {{"lastUpdated":"2001-09-09T01:46:41Z","currentTime":"2001-09-09T01:47:50Z","healthy":false,{status}}}"#
            )
        );
        assert_eq!(healthz(&health, at(start, 70)).status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(healthz(&health, at(start, 69)).status, StatusCode::OK);
    }

    #[test]
    fn a_time_that_is_not_known_is_that_of_go() {
        let mut health = HealthState::default();
        health.times.complete();
        let start = Now::read();
        health.times.queued(start);
        let answer = livez(&health, at(start, 60));
        assert_eq!(answer.body["lastUpdated"], NEVER);
        assert_eq!(answer.body.get("status"), None);
    }
}
