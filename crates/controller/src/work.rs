//! The work of the controller that leads: follow the nodes, give ranges to those without.

mod news;

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::stream::FuturesUnordered;
use futures::StreamExt;
use kube::Client;
use podwire_kubernetes::Backoff;
use tokio::sync::{mpsc, watch};
use tracing::{debug, info, warn};

use self::news::News;
use crate::metrics::Metrics;
use crate::object;
use crate::register::{Next, Order, Reason, Register, Remark};
use crate::status::{Board, Network, Phase};
use crate::tellings::Tellings;
use crate::tenure::Tenure;
use crate::write::{write, Fate};
use crate::{ClusterCidrs, Result};

/// So many Node objects are written at a time.
const AT_A_TIME: usize = 16;
/// So much news is taken in before anything is given: of a burst, the ranges that became free first.
const BATCH: usize = 1000;

/// What the work needs of the world.
pub(crate) struct Work {
    pub client: Client,
    pub networks: ClusterCidrs,
    /// How long one answer may take.
    pub patience: Duration,
    pub board: Board,
    pub metrics: Arc<Metrics>,
    pub tellings: Tellings,
}

/// What is known at the moment.
struct Desk<'a> {
    work: &'a Work,
    register: Register,
    /// All nodes are known: before that, nothing is given.
    is_whole: bool,
    /// By uid, since when a node waits, and its pauses after failures.
    waits: HashMap<String, (Instant, Option<Backoff>)>,
    /// What of the register was last reported.
    reported: Option<u64>,
}

impl Work {
    /// Works until it is told to stop, and then until every order that is out is answered. Dropping it stops at once.
    pub async fn run(&self, tenure: &Tenure, mut stop: watch::Receiver<bool>) -> Result<()> {
        let nodes = object::nodes(self.client.clone());
        let (sender, mut news) = mpsc::channel(BATCH);
        let mut follow = pin!(news::follow(nodes.clone(), sender));
        let (mut writes, mut pauses) = (FuturesUnordered::new(), FuturesUnordered::new());
        let register = Register::new(self.networks.ranges()?);
        let mut desk = Desk { work: self, register, is_whole: false, waits: HashMap::new(), reported: None };
        let mut stopping = false;
        loop {
            let mut heard = Vec::new();
            tokio::select! {
                () = &mut follow => {}
                _ = news.recv_many(&mut heard, BATCH) => heard.into_iter().for_each(|news| desk.hear(news)),
                Some((order, fate)) = writes.next() => {
                    if let Some(pause) = desk.finish(order, fate) {
                        pauses.push(pause);
                    }
                }
                Some(order) = pauses.next() => desk.retry(&order),
                _ = stop.wait_for(|stop| *stop), if !stopping => stopping = true,
            }
            desk.register.review().into_iter().for_each(|remark| self.tellings.tell(remark));
            while desk.is_whole && !stopping && tenure.holds() && writes.len() < AT_A_TIME {
                let Some(order) = desk.next() else { break };
                writes.push(write(nodes.clone(), order, tenure.clone(), self.patience));
            }
            desk.report();
            if stopping && writes.is_empty() {
                return Ok(());
            }
        }
    }
}

impl Desk<'_> {
    fn hear(&mut self, news: News) {
        match news {
            News::All(all) => {
                info!(nodes = all.len(), "all nodes are known");
                self.register.replace(all);
                self.is_whole = true;
                let mut status = self.work.board.write();
                (status.phase, status.watch_trouble) = (Phase::Leading, None);
            }
            News::Seen(seen) => self.register.learn(seen),
            News::Gone { name, uid } => {
                self.waits.remove(&uid);
                self.register.forget(&name, &uid);
            }
            News::Broken(why) => {
                self.work.metrics.watch_failures.inc();
                // What is not told now is told by the next whole list.
                self.is_whole = false;
                let mut status = self.work.board.write();
                if status.watch_trouble.as_ref() != Some(&why) {
                    warn!(why, "nodes are not heard of");
                }
                (status.phase, status.watch_trouble) = (Phase::Learning, Some(why));
            }
        }
    }

    /// The next order. Who cannot have one is told.
    fn next(&mut self) -> Option<Order> {
        loop {
            match self.register.next()? {
                Next::Tell(remark) => self.work.tellings.tell(remark),
                Next::Write(order) => {
                    let known = self.waits.len();
                    self.waits.entry(order.uid.clone()).or_insert((Instant::now(), None));
                    // Another try is no other search.
                    if self.waits.len() > known {
                        self.register
                            .tries()
                            .for_each(|(network, tries)| self.work.metrics.tried(network, tries));
                    }
                    return Some(order);
                }
            }
        }
    }

    /// Takes in what became of an order. If it is to be tried again, returns the pause before that.
    fn finish(&mut self, order: Order, fate: Fate) -> Option<impl std::future::Future<Output = Order>> {
        let why = match fate {
            Fate::Gone => {
                self.waits.remove(&order.uid);
                self.register.forget(&order.name, &order.uid);
                return None;
            }
            Fate::Seen(seen, refusal) => {
                if !self.register.answered(&order, seen) {
                    self.settle(&order);
                    return None;
                }
                refusal.map_or_else(
                    || "the API server took it and it is not there".into(),
                    |error| error.to_string(),
                )
            }
            Fate::Unknown(error) => {
                if !self.register.rest(&order) {
                    self.settle(&order);
                    return None;
                }
                error.to_string()
            }
        };
        self.work.metrics.failures.inc();
        debug!(node = order.name, why, "a write failed");
        let (_, backoff) = self.waits.entry(order.uid.clone()).or_insert((Instant::now(), None));
        // Told once; the tries go on.
        if backoff.is_none() {
            let note =
                format!("Node {} status is now: CIDRAssignmentFailed: {why}; it is tried again", order.name);
            let (name, uid, reason) = (order.name.clone(), order.uid.clone(), Reason::CidrAssignmentFailed);
            self.work.tellings.tell(Remark { name, uid, reason, note });
        }
        let pause = backoff.get_or_insert_default().pause();
        Some(async move {
            tokio::time::sleep(pause).await;
            order
        })
    }

    /// After the pause: the node may have got its range all the same, as the watch tells.
    fn retry(&mut self, order: &Order) {
        if !self.register.retry(order) {
            self.settle(order);
        }
    }

    /// An order is of no interest any more: because it is done, or because somebody else was faster.
    fn settle(&mut self, order: &Order) {
        let Some((since, _)) = self.waits.remove(&order.uid).filter(|_| self.register.is_done(order)) else {
            return;
        };
        let ranges: Vec<String> = order.ranges.iter().map(ToString::to_string).collect();
        info!(node = order.name, ranges = ranges.join(" "), "a range is given");
        self.work.metrics.assigned(since.elapsed());
    }

    fn report(&mut self) {
        if self.reported.replace(self.register.version()) == Some(self.register.version()) {
            return;
        }
        let (metrics, register, usage) = (&self.work.metrics, &self.register, self.register.usage());
        let mut status = self.work.board.write();
        status.nodes = register.len();
        status.waiting = register.waiting().into_iter().map(String::from).collect();
        status.quarantined = register.quarantine().map(|(name, why)| (name.into(), why.into())).collect();
        let network = |usage: &podwire_ipam::Usage| Network {
            network: usage.network.to_string(),
            ranges: usage.capacity,
            taken: usage.taken,
        };
        status.networks = usage.iter().map(network).collect();
        let count = |length: usize| i64::try_from(length).unwrap_or(i64::MAX);
        metrics.nodes.set(count(status.nodes));
        metrics.waiting.set(count(status.waiting.len()));
        metrics.quarantined.set(count(status.quarantined.len()));
        metrics.filled(&usage);
    }
}
