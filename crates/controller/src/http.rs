//! `/healthz`, `/readyz`, `/status` and `/metrics`. `/status` is for clients on the node only.
//!
//! A standby controller is ready. A controller that cannot reach the API server is not.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::http::{header, StatusCode};
use axum::response::IntoResponse;
use axum::routing::get;
use axum::Router;
use podwire_http_server::{Listen, Routes};

use crate::metrics::Metrics;
use crate::status::{Phase, StatusHandle};
use crate::Result;

const PROMETHEUS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves until the runtime ends. Returns the bound addresses.
pub(crate) async fn serve(
    listen: Listen,
    status: StatusHandle,
    metrics: Arc<Metrics>,
) -> Result<Vec<SocketAddr>> {
    let ready = status.clone();
    let metrics = move || async move { ([(header::CONTENT_TYPE, PROMETHEUS)], metrics.text()) };
    let remote = Router::new()
        .route("/healthz", get(|| async { "podwire controller is running\n" }))
        .route("/readyz", get(move || async move { readiness(&ready) }))
        .route("/metrics", get(metrics));
    let local = remote.clone().route("/status", get(move || async move { json(&status) }));
    Ok(podwire_http_server::serve(listen, Routes { local, remote }).await?)
}

fn readiness(status: &StatusHandle) -> (StatusCode, String) {
    let status = status.read();
    let not_ready =
        |why: &str| (StatusCode::SERVICE_UNAVAILABLE, format!("podwire controller is not ready: {why}\n"));
    match (status.phase, status.lease_error.or(status.watch_error)) {
        (_, Some(error)) => not_ready(&error),
        (Phase::Starting, None) => not_ready("the leader is not known yet"),
        (Phase::Listing, None) => not_ready("the nodes are being listed"),
        (Phase::Standby, None) => {
            let leader = status.leader.unwrap_or_default();
            (StatusCode::OK, format!("podwire controller is on standby, the leader is {leader}\n"))
        }
        (Phase::Leading, None) => (StatusCode::OK, "podwire controller is the leader\n".into()),
    }
}

fn json(status: &StatusHandle) -> impl IntoResponse {
    let text = serde_json::to_string_pretty(&status.read()).unwrap_or_default();
    ([(header::CONTENT_TYPE, "application/json")], text + "\n")
}
