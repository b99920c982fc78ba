//! An agent's life: the network's config, a range, the roads, the announcement; and again from the start whenever one of
//! them is lost. What fails is told and tried again, more and more patiently; it never ends the program.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use cluster::{Backoff, Generation, Health, NetConf, Node, Registration, Severity, Source, SubnetEnv};
use fabric::{Uplink, VtepMac};
use ipnet::IpNet;
use kernel::{Host, Mac};
use tokio::signal::unix::{signal, SignalKind};
use tracing::{error, info, warn};

use crate::backend::Backend;
use crate::metrics::Metrics;
use crate::plan::{self, Plan};
use crate::roads::{self, Made, Roads, Told};
use crate::status::{Board, Phase};
use crate::{http, Error, Result, Settings};

/// Lives until SIGTERM or SIGINT. Roads, rules and files stay as they are then: pods go on talking.
pub async fn run(settings: Settings, source: Source) -> Result<()> {
    let board = Board::new(&settings.node_name);
    let metrics = Arc::new(Metrics::new());
    if let Some(address) = settings.health {
        let bound = http::serve(address, board.clone(), metrics.clone()).await?;
        info!(%bound, "health and metrics are served");
    }
    let roads = Roads::start(&settings)?;
    let signals = "signals";
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::file("listen to", signals))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::file("listen to", signals))?;
    let mut life = Life { settings, source, roads, board, metrics, told: None };
    tokio::select! {
        () = life.live() => {}
        _ = terminate.recv() => info!("SIGTERM: ending, the roads stay open"),
        _ = interrupt.recv() => info!("SIGINT: ending, the roads stay open"),
    }
    Ok(())
}

struct Life {
    settings: Settings,
    source: Source,
    roads: Roads,
    board: Board,
    metrics: Arc<Metrics>,
    /// The last problem that was told, so that it is not told again and again.
    told: Option<String>,
}

/// What one life is built on.
struct Ground {
    conf: NetConf,
    backend: Backend,
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
                    self.problem(error.to_string()).await;
                    backoff.wait().await;
                }
            }
        }
    }

    /// One life: until the range is lost, or something fails.
    async fn once(&mut self) -> Result<String> {
        let mut ground = self.settle().await?;
        let mut watch = self.source.watch();
        let first = watch.latest();
        if let Some(why) = self.learn(&mut ground, first)? {
            return Ok(why);
        }
        let (source, kept) = (self.source.clone(), ground.own.clone());
        let keep = async move { source.keep(&kept).await };
        tokio::pin!(keep);
        loop {
            tokio::select! {
                generation = watch.changed() => {
                    if let Some(why) = self.learn(&mut ground, generation)? {
                        return Ok(why);
                    }
                }
                told = self.roads.told() => self.hear(&mut ground, told?).await?,
                lost = &mut keep => return Ok(lost.to_string()),
            }
        }
    }

    /// The config, the interface, the range.
    async fn settle(&mut self) -> Result<Ground> {
        let conf = self.source.network().await?;
        let mut backend = Backend::read(&conf, &self.settings)?;
        let mut host = Host::here()?;
        let uplinks = roads::uplinks(&mut host, &self.settings.preference, &conf)?;
        let previous = SubnetEnv::read(&self.settings.subnet_file)?.unwrap_or_default().ranges();
        let registration =
            |backend: &Backend| plan::registration(&self.settings, backend, &uplinks, &[], previous);
        if let Backend::Vxlan(vxlan) = &mut backend {
            let remembered = match self.settings.derived_mac {
                true => None,
                false => self.source.remembered(&registration(&Backend::Vxlan(vxlan.clone()))).await?,
            };
            let mut mac = |v4: bool| -> Result<Mac> {
                let told = remembered.as_ref().and_then(|node| match v4 {
                    true => node.backend.vtep(),
                    false => node.backend.vtep_v6(),
                });
                let told = told.and_then(|vtep| vtep.mac.parse::<Mac>().ok()).filter(Mac::is_usable);
                let name = vxlan.device(v4);
                let mut there =
                    || Ok::<_, Error>(host.find_link(&name)?.and_then(|link| link.mac_text().parse().ok()));
                let derived = || Mac::of(&format!("{name} on {}", self.settings.node_name));
                Ok(match (told, self.settings.derived_mac) {
                    (Some(told), _) => told,
                    (None, false) => there()?.unwrap_or_else(derived),
                    (None, true) => derived(),
                })
            };
            vxlan.mac = VtepMac::Told { v4: Some(mac(true)?), v6: Some(mac(false)?) };
        }
        let registration = registration(&backend);
        let own = self.source.acquire(&registration).await?;
        info!(node = own.name, ranges = %ranges(&own).join(" "), backend = conf.backend_type, "this node's range");
        let mut status = self.board.write();
        status.backend.clone_from(&conf.backend_type);
        status.ranges = ranges(&own);
        status.uplinks = uplinks.iter().map(uplink_text).collect();
        drop(status);
        self.metrics.range_addresses.set(addresses(&own));
        Ok(Ground { conf, backend, uplinks, registration, own, news: None })
    }

    /// What the source says goes to the roads. Returns why all must start over, if it must.
    fn learn(&mut self, ground: &mut Ground, generation: Generation) -> Result<Option<String>> {
        let text = generation.health.to_string();
        let before = std::mem::replace(&mut self.board.write().source, text.clone());
        self.metrics.source_current.set((generation.health == Health::Current).into());
        if before != text {
            match generation.health {
                Health::Current => info!("the source of nodes answers"),
                _ => warn!(source = text, "the source of nodes does not answer"),
            }
        }
        let Some(nodes) = generation.nodes else { return Ok(None) };
        let own = nodes.iter().find(|node| node.name == ground.own.name);
        if let Some(own) = own.filter(|own| own.ranges != ground.own.ranges) {
            return Ok(Some(format!("this node's range is now {}", ranges(own).join(" "))));
        }
        for (one, other) in cluster::overlaps(&nodes) {
            warn!(one, other, "two nodes have ranges that share addresses");
        }
        ground.news.get_or_insert_with(Instant::now);
        let Ground { conf, backend, own, .. } = ground;
        let plan =
            Plan { backend: backend.clone(), conf: conf.clone(), own: own.clone(), nodes: Some(nodes) };
        self.roads.plan(plan)?;
        Ok(None)
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
                    ground.registration.previous,
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

    async fn register(&mut self, ground: &mut Ground, registration: Registration) -> Result<()> {
        let own = self.source.acquire(&registration).await?;
        info!(node = own.name, "told the others what has changed here");
        ground.registration = registration;
        ground.own = own;
        Ok(())
    }

    /// The roads are open: pods may come.
    async fn announce(&mut self, ground: &mut Ground, made: &Made) -> Result<()> {
        self.metrics.compared(made.took, made.changes);
        if let Some(news) = ground.news.take() {
            self.metrics.converged(news.elapsed());
        }
        let masquerades = self.settings.firewall.masquerade;
        let env = SubnetEnv::new(&ground.conf, ground.own.ranges, made.mtu, masquerades);
        env.write(&self.settings.subnet_file)?;
        let mut problems = made.failed.clone();
        if let Some(conflist) = &self.settings.conflist {
            if conflist.write(&env)? {
                info!(path = %conflist.path.display(), "pods may come");
            }
            let rivals = conflist.rivals();
            problems.extend(rivals.iter().map(|rival| {
                format!(
                    "{} stands before {}: the runtime takes that network",
                    rival.display(),
                    conflist.path.display()
                )
            }));
        }
        let was_ready = self.show(ground, made, problems.clone());
        for problem in &problems {
            self.tell(problem).await;
        }
        if problems.is_empty() {
            self.told = None;
        }
        if let (Source::Kubernetes(kubernetes), false, true) =
            (&self.source, was_ready, self.settings.set_available)
        {
            kubernetes.set_available().await?;
        }
        Ok(())
    }

    /// On the board; returns whether pods could come before.
    fn show(&self, ground: &Ground, made: &Made, problems: Vec<String>) -> bool {
        self.metrics.ready.set(1);
        self.metrics.peers.set(made.peers as i64);
        self.metrics.refused.set(made.refused.len() as i64);
        let mut status = self.board.write();
        for (peer, why) in made.refused.iter().filter(|one| !status.refused.contains(one)) {
            warn!(peer, why, "no road");
        }
        let was_ready = status.phase == Phase::Ready;
        status.phase = Phase::Ready;
        status.mtu = made.mtu;
        status.peers = made.peers;
        status.refused.clone_from(&made.refused);
        status.uplinks = made.uplinks.iter().map(uplink_text).collect();
        status.ranges = ranges(&ground.own);
        status.problems = problems;
        was_ready
    }

    /// The node cannot carry traffic: the runtime is told so.
    async fn withdraw(&mut self, why: &str) {
        if let Some(Err(error)) = self.settings.conflist.as_ref().map(|conflist| conflist.remove()) {
            error!(%error, "the list of plugins");
        }
        self.metrics.ready.set(0);
        self.board.write().phase = Phase::Broken;
        self.problem(why.into()).await;
    }

    async fn problem(&mut self, what: String) {
        self.board.write().problems = vec![what.clone()];
        self.tell(&what).await;
    }

    /// Once, not with every try.
    async fn tell(&mut self, what: &str) {
        if self.told.as_deref() == Some(what) {
            return;
        }
        error!("{what}");
        self.told = Some(what.into());
        if let Source::Kubernetes(kubernetes) = &self.source {
            // Who cannot reach the server cannot tell it either.
            drop(kubernetes.event(Severity::Warning, "PodNetwork", what).await);
        }
    }
}

fn ranges(node: &Node) -> Vec<String> {
    node.ranges.iter().map(|range| range.to_string()).collect()
}

fn addresses(node: &Node) -> f64 {
    let size = |range: IpNet| match range.network() {
        IpAddr::V4(_) => f64::from(32 - range.prefix_len()).exp2(),
        IpAddr::V6(_) => f64::from(128 - range.prefix_len()).exp2(),
    };
    node.ranges.iter().map(size).sum()
}

fn uplink_text(uplink: &Uplink) -> String {
    format!("{} {}", uplink.name, uplink.address)
}
