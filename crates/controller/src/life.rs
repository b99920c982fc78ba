//! A controller's life: stand by, lead, and stand by again if the lease is lost. It ends when it is told to, and then lets another
//! begin at once.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tokio::signal::unix::{signal, SignalKind};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::collection::Collection;
use crate::election::Election;
use crate::metrics::Metrics;
use crate::settings::identity;
use crate::status::{Board, Phase};
use crate::tellings::Tellings;
use crate::tenure::Tenure;
use crate::work::Work;
use crate::{http, ClusterCidrs, Error, LeaderElection, Result, Settings};

/// How long an answer may take where no lease limits it.
const PATIENCE: Duration = Duration::from_secs(10);

/// Lives until SIGTERM or SIGINT.
pub async fn run(settings: Settings, client: Client) -> Result<()> {
    let identity =
        settings.leader_election.as_ref().map_or_else(identity, |leadership| leadership.identity.clone());
    let (board, metrics) = (Board::new(&identity), Arc::new(Metrics::new()));
    if let Some(address) = settings.health_address {
        let bound = http::serve(address, board.clone(), metrics.clone()).await?;
        info!(%bound, "health and metrics are served");
    }
    for (network, services) in settings.cluster_cidrs.iter().flat_map(ClusterCidrs::overlaps) {
        warn!(%network, %services, "the services' range is in the cluster's network: no node gets any of it");
    }
    let stop = stop_signal()?;
    let tellings = Tellings::start(client.clone(), &identity);
    let patience = settings.leader_election.as_ref().map_or(PATIENCE, LeaderElection::patience);
    let (ranges, about) = (settings.cluster_cidrs, (board.clone(), metrics.clone()));
    let work = |networks| {
        let (client, (board, metrics)) = (client.clone(), about.clone());
        Work { client, networks, patience, board, metrics, tellings }
    };
    let collection = |addresses| {
        let (client, (board, metrics)) = (client.clone(), about.clone());
        Collection { addresses, client, board, metrics }
    };
    let duties = Duties {
        work: ranges.map(work),
        collection: settings.leak_collection.map(collection),
        board,
        metrics,
    };
    match settings.leader_election {
        None => {
            duties.board.lead();
            duties.fulfil(&Tenure::endless(), stop).await
        }
        Some(leadership) => take_turns(&duties, client, leadership, stop).await,
    }
}

/// All that a leader does.
struct Duties {
    work: Option<Work>,
    collection: Option<Collection>,
    board: Board,
    metrics: Arc<Metrics>,
}

impl Duties {
    /// Works until it is told to stop.
    async fn fulfil(&self, tenure: &Tenure, stop: watch::Receiver<bool>) -> Result<()> {
        let mut end = stop.clone();
        let ranges = async {
            match &self.work {
                Some(work) => work.run(tenure, end).await,
                None => {
                    self.board.write().phase = Phase::Leading;
                    let _ = end.wait_for(|stop| *stop).await;
                    Ok(())
                }
            }
        };
        match &self.collection {
            None => ranges.await,
            Some(collection) => tokio::join!(ranges, collection.run(tenure, stop)).0,
        }
    }
}

/// Leads whenever it is this one's turn.
async fn take_turns(
    duties: &Duties,
    client: Client,
    leadership: LeaderElection,
    mut stop: watch::Receiver<bool>,
) -> Result<()> {
    let lease = leadership.name.clone();
    let mut election = Election::new(client, leadership, duties.board.clone());
    loop {
        duties.metrics.leads(&lease, false);
        let tenure = tokio::select! {
            tenure = election.win() => tenure,
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
        };
        duties.board.lead();
        duties.metrics.leads(&lease, true);
        tokio::select! {
            // What is being written is left where it is. It is answered, or given up, before another may begin.
            why = election.keep(&tenure) => {
                warn!(why, "this controller leads no more");
                duties.board.lost();
            }
            ended = duties.fulfil(&tenure, stop.clone()) => {
                ended?;
                election.release().await;
                return Ok(());
            }
        }
    }
}

/// Becomes true when the process is told to end.
fn stop_signal() -> Result<watch::Receiver<bool>> {
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::Signals)?;
    let (sender, receiver) = watch::channel(false);
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => info!("SIGTERM: ending"),
            _ = interrupt.recv() => info!("SIGINT: ending"),
        }
        let _ = sender.send(true);
    });
    Ok(receiver)
}
