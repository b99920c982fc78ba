//! The controller's main loop: stand by, lead, and stand by again after the lease is lost. At SIGTERM and SIGINT it
//! ends and releases the lease, so that another controller takes over at once.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tokio::signal::unix::{signal, SignalKind};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::assigner::Assigner;
use crate::election::Election;
use crate::events::EventSender;
use crate::leak_collection::LeakCollector;
use crate::lease_deadline::LeaseDeadline;
use crate::metrics::Metrics;
use crate::settings::identity;
use crate::status::{Phase, StatusHandle};
use crate::{http, ClusterCidrs, Error, LeaderElection, Result, Settings};

/// The time limit of a request without leader election.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs until SIGTERM or SIGINT.
pub async fn run(settings: Settings, client: Client) -> Result<()> {
    let election = settings.leader_election;
    let identity = election.as_ref().map_or_else(identity, |election| election.identity.clone());
    let (status, metrics) = (StatusHandle::new(&identity), Arc::new(Metrics::new()));
    if let Some(listen) = settings.health {
        let bound = http::serve(listen, status.clone(), metrics.clone()).await?;
        info!(addresses = ?bound, "serving health and metrics");
    }
    for (network, services) in settings.cluster_cidrs.iter().flat_map(ClusterCidrs::service_overlaps) {
        warn!(%network, %services, "the service range overlaps the cluster network and is excluded from it");
    }
    let stop = stop_signal()?;
    let events = EventSender::start(client.clone(), &identity);
    let request_timeout = election.as_ref().map_or(REQUEST_TIMEOUT, LeaderElection::request_timeout);
    let assigner = settings.cluster_cidrs.map(|cluster_cidrs| Assigner {
        client: client.clone(),
        cluster_cidrs,
        request_timeout,
        status: status.clone(),
        metrics: metrics.clone(),
        events,
    });
    let collector = settings.leak_collection.map(|settings| LeakCollector {
        settings,
        client: client.clone(),
        status: status.clone(),
        metrics: metrics.clone(),
    });
    let leader = Leader { assigner, collector, status, metrics };
    match election {
        None => {
            leader.status.set_leading();
            leader.run(&LeaseDeadline::never(), stop).await
        }
        Some(election) => run_elected(&leader, client, election, stop).await,
    }
}

/// The tasks of the leader.
struct Leader {
    assigner: Option<Assigner>,
    collector: Option<LeakCollector>,
    status: StatusHandle,
    metrics: Arc<Metrics>,
}

impl Leader {
    /// Runs all tasks until `stop` is true.
    async fn run(&self, deadline: &LeaseDeadline, stop: watch::Receiver<bool>) -> Result<()> {
        let mut end = stop.clone();
        let assign = async {
            if let Some(assigner) = &self.assigner {
                return assigner.run(deadline, end).await;
            }
            self.status.write().phase = Phase::Leading;
            let _ = end.wait_for(|stop| *stop).await;
            Ok(())
        };
        match &self.collector {
            None => assign.await,
            Some(collector) => tokio::join!(assign, collector.run(deadline, stop)).0,
        }
    }
}

/// Leads whenever this controller holds the lease.
async fn run_elected(
    leader: &Leader,
    client: Client,
    settings: LeaderElection,
    mut stop: watch::Receiver<bool>,
) -> Result<()> {
    let lease = settings.name.clone();
    let mut election = Election::new(client, settings, leader.status.clone());
    loop {
        leader.metrics.set_leader(&lease, false);
        let deadline = tokio::select! {
            deadline = election.acquire() => deadline,
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
        };
        leader.status.set_leading();
        leader.metrics.set_leader(&lease, true);
        tokio::select! {
            // Requests in flight are dropped. They end, or time out, before another controller may begin.
            why = election.renew(&deadline) => {
                warn!(why, "lost the lease");
                leader.status.set_lease_lost();
            }
            ended = leader.run(&deadline, stop.clone()) => {
                ended?;
                election.release().await;
                return Ok(());
            }
        }
    }
}

/// Becomes true at SIGTERM or SIGINT.
fn stop_signal() -> Result<watch::Receiver<bool>> {
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::Signals)?;
    let (sender, receiver) = watch::channel(false);
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => info!("received SIGTERM, stopping"),
            _ = interrupt.recv() => info!("received SIGINT, stopping"),
        }
        let _ = sender.send(true);
    });
    Ok(receiver)
}
