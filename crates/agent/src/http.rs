//! `/healthz`, `/readyz`, `/status` and `/metrics`. The first two answer as flannel's do, so that its probes fit.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::http::{header, StatusCode};
use axum::response::IntoResponse;
use axum::routing::get;
use axum::Router;

use crate::metrics::Metrics;
use crate::pool::Pool;
use crate::status::{Board, Phase};
use crate::{Error, Result};

/// Serves until the runtime ends; returns where.
pub(crate) async fn serve(
    address: SocketAddr,
    board: Board,
    metrics: Arc<Metrics>,
    pool: Pool,
) -> Result<SocketAddr> {
    let failed = |source| Error::Listen { address, source };
    let listener = tokio::net::TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    let (ready, counted, status) = (board.clone(), board.clone(), board);
    let router = Router::new()
        .route("/healthz", get(|| async { "podwire agent is running\n" }))
        .route("/readyz", get(move || async move { readiness(&ready) }))
        .route("/status", get(move || async move { json(&status) }))
        .route(
            "/metrics",
            get(move || async move {
                metrics.taken_addresses.set(pool.taken(&counted.read().ranges) as i64);
                ([(header::CONTENT_TYPE, PROMETHEUS)], metrics.text(counted.policy_agent()))
            }),
        );
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(bound)
}

pub(crate) const PROMETHEUS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

fn readiness(board: &Board) -> (StatusCode, String) {
    let status = board.read();
    match status.phase {
        Phase::Ready => (StatusCode::OK, "podwire agent is ready\n".into()),
        _ => {
            let why = if status.problems.is_empty() { status.source } else { status.problems.join("; ") };
            (StatusCode::SERVICE_UNAVAILABLE, format!("podwire agent is not ready: {why}\n"))
        }
    }
}

fn json(board: &Board) -> impl IntoResponse {
    let text = serde_json::to_string_pretty(&board.read()).unwrap_or_default();
    ([(header::CONTENT_TYPE, "application/json")], text + "\n")
}
