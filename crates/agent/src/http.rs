//! `/healthz`, `/readyz`, `/status` and `/metrics`. The first two answer like flannel's, so that its probes fit.
//! `/status` is for clients on the node only: it names nodes, addresses and policies of the whole cluster.

use std::sync::Arc;

use axum::http::{header, StatusCode};
use axum::response::IntoResponse;
use axum::routing::get;
use axum::Router;
use podwire_agent_ipc::status::{Phase, Status};
use podwire_http_server::{Listen, Routes};
use tracing::info;

use crate::metrics::Metrics;
use crate::status::StatusHandle;
use crate::Result;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves until the runtime ends.
pub(crate) async fn serve(listen: Listen, status: StatusHandle, metrics: Arc<Metrics>) -> Result<()> {
    let (ready, measured) = (status.clone(), status.clone());
    let remote =
        Router::new()
            .route("/healthz", get(|| async { "podwire agent is running\n" }))
            .route("/readyz", get(move || async move { readiness(&ready.read()) }))
            .route(
                "/metrics",
                get(move || async move {
                    ([(header::CONTENT_TYPE, OPENMETRICS)], metrics.text(&measured.read()))
                }),
            );
    let local = remote.clone().route("/status", get(move || async move { json(&status.read()) }));
    let bound = podwire_http_server::serve(listen, Routes { local, remote }).await?;
    info!(addresses = ?bound, "serving health and metrics");
    Ok(())
}

fn readiness(status: &Status) -> (StatusCode, String) {
    if status.phase == Phase::Ready {
        return (StatusCode::OK, "podwire agent is ready\n".into());
    }
    let why =
        if status.problems.is_empty() { status.store.detail.clone() } else { status.problems.join("; ") };
    (StatusCode::SERVICE_UNAVAILABLE, format!("podwire agent is not ready: {why}\n"))
}

fn json(status: &Status) -> impl IntoResponse {
    let text = serde_json::to_string_pretty(status).unwrap_or_default();
    ([(header::CONTENT_TYPE, "application/json")], text + "\n")
}
