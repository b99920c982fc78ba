//! An agent's life: the network's config, a range, the roads, the announcement; and again from the start whenever one of
//! them is lost. What fails is told and tried again, more and more patiently; it never ends the program.

mod settle;
mod tell;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use podwire_kernel::Host;
use podwire_kubernetes::Backoff;
use podwire_overlay::{Preference, Uplink, Watch};
use podwire_policy_agent::PolicyAgent;
use podwire_subnets::{Generation, Health, NetConf, Node, Registration, Source, SubnetEnv};
use tokio::signal::unix::{signal, SignalKind};
use tracing::{info, warn};

use crate::backend::Backend;
use crate::metrics::Metrics;
use crate::plan::{self, Plan};
use crate::pool::Pool;
use crate::roads::{Roads, Told};
use crate::status::Board;
use crate::{calls, http, policies, Error, Result, Settings};

/// Lives until SIGTERM or SIGINT. Roads, rules and files stay as they are then: pods go on talking.
pub async fn run(settings: Settings, source: Source) -> Result<()> {
    let board = Board::new(&settings.node_name);
    let metrics = Metrics::new();
    let metrics = Arc::new(if settings.policy.is_some() { metrics.with_policies() } else { metrics });
    if let Some(address) = settings.health {
        let pool = Pool(settings.addresses_folder.clone());
        let bound = http::serve(address, board.clone(), metrics.clone(), pool).await?;
        info!(%bound, "health and metrics are served");
    }
    if let Err(error) = calls::listen(&settings.calls_socket, metrics.clone()) {
        // Numbers are missing then, and nothing else.
        warn!(%error, "plugins' calls are not counted");
    }
    let roads = Roads::start(&settings)?;
    // A file that cannot be read is told of when the range is asked for.
    let remembered = SubnetEnv::read(&settings.subnet_file).ok().flatten().unwrap_or_default().ranges();
    let guarded = remembered.iter().collect();
    let enforce = |source| policies::enforce(&settings.node_name, source, settings.policy_cut, guarded);
    let policy_agent = settings.policy.clone().map(enforce).transpose()?;
    if let Some(policy_agent) = &policy_agent {
        board.show_policies(policy_agent.clone());
    }
    let signals = "signals";
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::file("listen to", signals))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::file("listen to", signals))?;
    let (told, strangers) = (BTreeSet::new(), BTreeSet::new());
    let mut life = Life {
        settings,
        source,
        roads,
        policy_agent,
        board,
        metrics,
        own: None,
        peace: None,
        told,
        strangers,
        ears: None,
    };
    tokio::select! {
        () = life.live() => {}
        _ = terminate.recv() => info!("SIGTERM: ending, the roads stay open"),
        _ = interrupt.recv() => info!("SIGINT: ending, the roads stay open"),
    }
    Ok(())
}

/// Hands this node's roads over to who comes after this agent: flanneld, whose rules stand already.
pub fn retire() -> Result<()> {
    for done in podwire_overlay::hand_over(&mut Host::here()?)? {
        info!("{done}");
    }
    Ok(())
}

struct Life {
    settings: Settings,
    source: Source,
    roads: Roads,
    /// Who keeps pods apart, if anybody is to.
    policy_agent: Option<PolicyAgent>,
    board: Board,
    metrics: Arc<Metrics>,
    /// This node, as it was last given its range.
    own: Option<Node>,
    /// The nodes when no two of them claimed the same range.
    peace: Option<Arc<Vec<Node>>>,
    /// The problems that were told, so that they are not told again and again.
    told: BTreeSet<String>,
    /// Nodes with roads of another kind.
    strangers: BTreeSet<String>,
    /// For a node without an interface to the others: they hear when that may have changed.
    ears: Option<Watch>,
}

/// How long ears listen before the thread that they are in looks whether it is still needed.
const LISTENING: Duration = Duration::from_secs(5);

/// What one life is built on.
struct Ground {
    conf: NetConf,
    backend: Backend,
    preference: Preference,
    uplinks: Vec<Uplink>,
    registration: Registration,
    own: Node,
    /// When the source last told something new that is not in the kernel yet.
    news: Option<Instant>,
}

impl Life {
    async fn live(&mut self) {
        let mut backoff = Backoff::new();
        loop {
            match self.once().await {
                Ok(why) => {
                    info!(why, "starting over");
                    backoff.reset();
                }
                Err(error) => {
                    self.problem(error.reason(), error.to_string()).await;
                    self.rest(&error, &mut backoff).await;
                }
            }
        }
    }

    /// Until it is worth another try: what was missing has come, or the time is over.
    async fn rest(&mut self, error: &Error, backoff: &mut Backoff) {
        match (error, &self.source, self.ears.take()) {
            (Error::Source(podwire_subnets::Error::NoRangeYet { .. }), Source::Kubernetes(kubernetes), _) => {
                if kubernetes.range_is_set().await.is_err() {
                    backoff.wait().await;
                }
            }
            (Error::Fabric(_), _, Some(mut ears)) => {
                let notice = tokio::task::spawn_blocking(move || drop(ears.wait(LISTENING, None)));
                tokio::select! {
                    _ = notice => {}
                    () = backoff.wait() => {}
                }
            }
            _ => backoff.wait().await,
        }
    }

    /// One life: until the range is lost, or something fails.
    async fn once(&mut self) -> Result<String> {
        let mut ground = self.settle().await?;
        let mut watch = self.source.watch();
        let first = watch.latest();
        if let Some(why) = self.learn(&mut ground, first).await? {
            return Ok(why);
        }
        let (source, kept) = (self.source.clone(), ground.own.clone());
        let keep = async move { source.keep(&kept).await };
        tokio::pin!(keep);
        loop {
            tokio::select! {
                generation = watch.changed() => {
                    if let Some(why) = self.learn(&mut ground, generation).await? {
                        return Ok(why);
                    }
                }
                told = self.roads.told() => self.hear(&mut ground, told?).await?,
                lost = &mut keep => return Ok(lost.to_string()),
            }
        }
    }

    /// What the source says goes to the roads. Returns why all must start over, if it must.
    async fn learn(&mut self, ground: &mut Ground, generation: Generation) -> Result<Option<String>> {
        let text = generation.health.to_string();
        let before = std::mem::replace(&mut self.board.write().source, text.clone());
        self.metrics.source_current.set((generation.health == Health::Current).into());
        if before != text {
            match generation.health {
                Health::Current => info!("the source of nodes answers"),
                _ => warn!(source = text, "the source of nodes does not answer"),
            }
        }
        let Some(nodes) = generation.nodes.clone() else { return Ok(None) };
        let own = nodes.iter().find(|node| node.name == ground.own.name);
        if let Some(own) = own.filter(|own| own.ranges != ground.own.ranges) {
            return Ok(Some(format!("this node's range is now {}", ranges(own).join(" "))));
        }
        let quarrels = podwire_subnets::overlaps(&nodes);
        for (one, other) in &quarrels {
            warn!(one, other, "two nodes have ranges that share addresses");
        }
        let elders = self.peace.clone().filter(|_| !quarrels.is_empty());
        if quarrels.is_empty() {
            self.peace = Some(nodes.clone());
        }
        ground.news.get_or_insert_with(Instant::now);
        let Ground { conf, backend, preference, own, .. } = ground;
        self.roads.plan(Plan {
            backend: backend.clone(),
            conf: conf.clone(),
            preference: preference.clone(),
            own: own.clone(),
            nodes: Some(nodes.clone()),
            refused: generation.refused,
            elders,
        })?;
        // Roads first: whoever is told may answer slowly.
        self.meet_strangers(&ground.own, &nodes).await;
        Ok(None)
    }

    /// Nodes whose roads are of another kind cannot be reached: usually the config was changed and not all agents restarted.
    async fn meet_strangers(&mut self, own: &Node, nodes: &[Node]) {
        let kind = &own.backend.kind;
        let strange = nodes.iter().filter(|node| node.backend.kind != *kind).map(|node| node.name.clone());
        let strangers: BTreeSet<String> = strange.collect();
        if strangers == self.strangers {
            return;
        }
        if let Some(first) = strangers.first() {
            let (many, all) = (strangers.len(), nodes.len());
            let text = format!(
                "{many} of {all} nodes ({first} among them) do not have this node's kind of roads, {kind}, and get none: \
                 was the network's config changed while their agents ran?"
            );
            self.tell("BackendMismatch", &text).await;
        }
        self.strangers = strangers;
    }

    /// What the roads say goes to whoever waits for it.
    async fn hear(&mut self, ground: &mut Ground, told: Told) -> Result<()> {
        match told {
            Told::Made(made) => {
                let seen = plan::registration(
                    &self.settings,
                    &ground.backend,
                    &made.uplinks,
                    &made.roads,
                    (ground.registration.previous, &ground.registration.backend),
                );
                if seen != ground.registration {
                    // Another address, or the key of a new device: the others must know.
                    self.register(ground, seen).await?;
                }
                ground.uplinks.clone_from(&made.uplinks);
                self.announce(ground, &made).await
            }
            Told::Failed(why) => {
                self.metrics.failures.inc();
                self.withdraw(&why).await;
                Ok(())
            }
            Told::Moved(uplinks) => {
                let text: Vec<String> = uplinks.iter().map(uplink_text).collect();
                warn!(uplinks = text.join(" "), "this node is reached at another place than before");
                Ok(())
            }
        }
    }
}

fn ranges(node: &Node) -> Vec<String> {
    node.ranges.iter().map(|range| range.to_string()).collect()
}

fn uplink_text(uplink: &Uplink) -> String {
    format!("{} {}", uplink.name, uplink.address)
}
