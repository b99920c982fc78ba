//! The agent of a node whose pods are routed: it owns the node's blocks of addresses ([`podwire_steward`]), builds the roads to those of the others
//! ([`podwire_router`]), and keeps pods apart ([`podwire_warden`]), if it is told to.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use axum::http::{header, StatusCode};
use axum::routing::get;
use axum::Router as Http;
use podwire_block_ipam::store::{Store, StoreError};
use podwire_router::Board;
use podwire_steward::Steward;
use podwire_warden::Warden;
use serde_json::{json, Value};
use tokio::signal::unix::{signal, SignalKind};
use tracing::info;

use crate::http::PROMETHEUS;
use crate::metrics::Routed;
use crate::status::Policies;
use crate::{policies, Error, Result};

/// What it is told.
pub struct Settings {
    /// The roads.
    pub roads: podwire_router::Settings,
    /// How many addresses of each family are kept in stock.
    pub stock: usize,
    /// Where leases are kept.
    pub state: PathBuf,
    /// Where plugins ask for addresses.
    pub socket: PathBuf,
    /// Who knows what Kubernetes knows of pods, if anybody does.
    pub pods: Option<Arc<dyn podwire_agent_ipc::pods::Cluster>>,
    /// Where health and status are served, if anywhere.
    pub health: Option<SocketAddr>,
    /// Where policies are known, if they are to be enforced.
    pub policy: Option<podwire_warden::Source>,
    /// Whether connections that policies no longer allow are cut.
    pub policy_cut: bool,
}

/// Lives until SIGTERM or SIGINT. Roads, rules and leases stay as they are then: pods go on talking.
pub async fn run<O>(settings: Settings, opener: O) -> Result<()>
where
    O: Fn() -> Result<Box<dyn Store>, StoreError> + Clone + Send + Sync + 'static,
{
    let signals = "signals";
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::file("listen to", signals))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::file("listen to", signals))?;
    let node = settings.roads.node.clone();
    let enforce = |source| policies::enforce(&node, source, settings.policy_cut, Vec::new());
    let warden = settings.policy.map(enforce).transpose()?;
    let addresses = podwire_steward::Settings { node: node.clone(), stock: settings.stock };
    let steward = Steward::start(addresses, &settings.state, Box::new(opener.clone()))?;
    let (name, cluster) = (node.clone(), settings.pods.clone());
    let is_member = move || cluster.as_ref().is_some_and(|cluster| cluster.has_node(&name));
    let steward = match settings.pods {
        Some(pods) => steward.knowing(pods),
        None => steward,
    };
    podwire_steward::open_door(&settings.socket, steward.clone())?;
    let board = podwire_router::start(settings.roads, Box::new(opener), Box::new(is_member))?;
    let life = Life { node, steward, board, warden };
    if let Some(address) = settings.health {
        life.serve(address).await?;
    }
    tokio::select! {
        _ = terminate.recv() => info!("SIGTERM: ending, the roads stay open"),
        _ = interrupt.recv() => info!("SIGINT: ending, the roads stay open"),
    }
    let _ = std::fs::remove_file(&settings.socket);
    Ok(())
}

#[derive(Clone)]
struct Life {
    node: String,
    steward: Steward,
    board: Board,
    warden: Option<Warden>,
}

impl Life {
    async fn serve(&self, address: SocketAddr) -> Result<()> {
        let failed = |source| Error::Listen { address, source };
        let listener = tokio::net::TcpListener::bind(address).await.map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let (ready, status, counted) = (self.clone(), self.clone(), self.clone());
        let numbers = Arc::new(Routed::new(self.warden.is_some()));
        let http = Http::new()
            .route("/healthz", get(|| async { "podwire agent is running\n" }))
            .route("/readyz", get(move || async move { ready.readiness() }))
            .route(
                "/status",
                get(move || async move {
                    ([(header::CONTENT_TYPE, "application/json")], format!("{:#}\n", status.status()))
                }),
            )
            .route(
                "/metrics",
                get(move || async move { ([(header::CONTENT_TYPE, PROMETHEUS)], counted.numbers(&numbers)) }),
            );
        tokio::spawn(async move { axum::serve(listener, http).await });
        info!(%bound, "health and status are served");
        Ok(())
    }

    fn numbers(&self, numbers: &Routed) -> String {
        let is_ready = self.readiness().0 == StatusCode::OK;
        numbers.text(is_ready, &self.steward.state(), &self.board.read(), self.warden.as_ref())
    }

    fn readiness(&self) -> (StatusCode, String) {
        let roads = self.board.read();
        let why = match (roads.ready, self.steward.is_ready()) {
            (true, Ok(())) => return (StatusCode::OK, "podwire agent is ready\n".into()),
            (_, Err(error)) => error.to_string(),
            (false, _) if roads.problems.is_empty() => "the store has not answered yet".into(),
            (false, _) => roads.problems.values().cloned().collect::<Vec<_>>().join("; "),
        };
        (StatusCode::SERVICE_UNAVAILABLE, format!("podwire agent is not ready: {why}\n"))
    }

    fn status(&self) -> Value {
        let podwire_steward::State { leases, stock, untold, trouble, unreadable, lost } =
            self.steward.state();
        json!({
            "node": self.node,
            "roads": self.board.read(),
            "addresses": {
                "leases": leases, "stock": stock, "untold": untold, "trouble": trouble, "unreadable": unreadable,
                "lost": lost,
            },
            "policies": self.warden.as_ref().map(Policies::of),
        })
    }
}
