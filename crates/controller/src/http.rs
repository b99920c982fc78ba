//! `/healthz`, `/readyz`, `/status` and `/metrics`.
//!
//! One that stands by is ready: it does what it is there for. One that does not hear the API server is not.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::http::{header, StatusCode};
use axum::response::IntoResponse;
use axum::routing::get;
use axum::Router;

use crate::metrics::Metrics;
use crate::status::{Board, Phase};
use crate::{Error, Result};

const PROMETHEUS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves until the runtime ends; returns where.
pub(crate) async fn serve(address: SocketAddr, board: Board, metrics: Arc<Metrics>) -> Result<SocketAddr> {
    let failed = |source| Error::Listen { address, source };
    let listener = tokio::net::TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    let (ready, status) = (board.clone(), board);
    let metrics = move || async move { ([(header::CONTENT_TYPE, PROMETHEUS)], metrics.text()) };
    let router = Router::new()
        .route("/healthz", get(|| async { "podwire controller is running\n" }))
        .route("/readyz", get(move || async move { readiness(&ready) }))
        .route("/status", get(move || async move { json(&status) }))
        .route("/metrics", get(metrics));
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(bound)
}

fn readiness(board: &Board) -> (StatusCode, String) {
    let status = board.read();
    let not =
        |why: &str| (StatusCode::SERVICE_UNAVAILABLE, format!("podwire controller is not ready: {why}\n"));
    match (status.phase, status.trouble.or(status.watch_trouble)) {
        (_, Some(trouble)) => not(&trouble),
        (Phase::Starting, None) => not("it is not known yet who leads"),
        (Phase::Learning, None) => not("the nodes are being listed"),
        (Phase::StandingBy, None) => {
            let leader = status.leader.unwrap_or_default();
            (StatusCode::OK, format!("podwire controller stands by: {leader} leads\n"))
        }
        (Phase::Leading, None) => (StatusCode::OK, "podwire controller leads\n".into()),
    }
}

fn json(board: &Board) -> impl IntoResponse {
    let text = serde_json::to_string_pretty(&board.read()).unwrap_or_default();
    ([(header::CONTENT_TYPE, "application/json")], text + "\n")
}
