//! The works: make the kernel what the plan says, whenever something was learned or something of ours was touched.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};

use podwire_block_ipam::{BlockIndex, IpFamily};
use podwire_kernel::{sysctl, Host};
use podwire_netlink::rt::address;
use podwire_overlay::{Blocks, Firewall, News, Uplink, Watch};
use tracing::{debug, info, warn};

use crate::bird::Sketch;
use crate::plan::{families, Place, Plan, Planner};
use crate::registrar::Wish;
use crate::{thread, Board, Error, IsMember, Result, Settings};

/// After a failure all is tried again after this.
const AGAIN: Duration = Duration::from_secs(1);
/// What the store still does not know is asked for again after this: what was written may have been taken away again.
const REMINDER: Duration = Duration::from_secs(30);

/// To and from the others.
pub(crate) struct Lines {
    /// What the survey has learned.
    pub(crate) atlases: Receiver<BlockIndex>,
    /// Rings when it has.
    pub(crate) bell: File,
    /// What the registrar is asked for.
    pub(crate) wishes: Sender<Wish>,
    /// What the speaker is told.
    pub(crate) sketches: Sender<Sketch>,
}

pub(crate) fn start(settings: Settings, is_member: IsMember, lines: Lines, board: Board) -> Result<()> {
    let host = Host::here()?;
    let mut works = Works {
        settings,
        is_member,
        was_member: false,
        lines,
        board,
        host,
        atlas: None,
        watch: None,
        uplinks: Vec::new(),
        asked: Asked::Never,
    };
    thread("works", move || works.run())
}

struct Works {
    settings: Settings,
    is_member: IsMember,
    /// Whether Kubernetes has ever had this node, as far as is known.
    was_member: bool,
    lines: Lines,
    board: Board,
    host: Host,
    atlas: Option<BlockIndex>,
    watch: Option<Watch>,
    uplinks: Vec<Uplink>,
    asked: Asked,
}

/// What the registrar was asked for last.
enum Asked {
    Never,
    For(Wish, Instant),
    /// The store knows it.
    Done,
}

impl Works {
    fn run(&mut self) {
        let Ok(first) = self.lines.atlases.recv() else { return };
        self.atlas = Some(first);
        loop {
            if self.latest().is_err() {
                return;
            }
            let rest = match self.make() {
                Ok(()) => {
                    self.board.problem("roads", None);
                    self.settings.resync
                }
                Err(error) => {
                    self.board.problem("roads", Some(error.to_string()));
                    AGAIN
                }
            };
            if let Err(error) = self.wait(rest) {
                // Deaf, it can still look.
                warn!(%error, "the kernel's notices are not heard");
                self.watch = None;
                std::thread::park_timeout(AGAIN);
            }
        }
    }

    /// Takes the last of what was learned.
    fn latest(&mut self) -> Result<(), ()> {
        loop {
            match self.lines.atlases.try_recv() {
                Ok(atlas) => self.atlas = Some(atlas),
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => return Err(()),
            }
        }
    }

    fn make(&mut self) -> Result<()> {
        let Some(atlas) = self.atlas.take() else { return Ok(()) };
        let made = self.make_for(&atlas);
        self.atlas = Some(atlas);
        made
    }

    fn make_for(&mut self, atlas: &BlockIndex) -> Result<()> {
        let began = Instant::now();
        let places = self.places(atlas)?;
        self.listen(&places)?;
        let families = families(atlas);
        sysctl::forward(families.contains(&IpFamily::V4), families.contains(&IpFamily::V6))?;
        let Settings { node, mtu, bird, .. } = &self.settings;
        let is_member = (self.is_member)();
        // Kubernetes has this node no longer: it asks for nothing more. A wish would bring back what somebody is just taking away.
        let is_given_up = self.was_member && !is_member;
        self.was_member |= is_member;
        let planner = Planner { node, is_member, mtu: *mtu, has_bgp: bird.is_some(), places: &places };
        let plan = planner.plan(atlas);
        let firewall = Firewall { blackhole: true, ..Firewall::default() };
        let report = podwire_overlay::apply(&mut self.host, &plan.blocks, &plan.cluster, &firewall)?;
        for change in &report.changed {
            info!(change, "roads");
        }
        debug!(took = ?began.elapsed(), "all was compared");
        let mut refused = plan.refused.clone();
        refused.extend(report.refused.iter().map(|one| (one.peer.clone(), one.why.clone())));
        self.tell_mtu(plan.mtu)?;
        self.show(&plan, refused);
        if !is_given_up {
            self.register(&plan);
        }
        // Nobody listens where BGP is not wanted.
        let _ = self.lines.sketches.send(Sketch { atlas: atlas.clone(), places });
        report.failed.into_iter().next().map_or(Ok(()), |first| Err(first.into()))
    }

    /// Where this node is met, for each family that pools have. A family without a place has no roads, and that is told.
    fn places(&mut self, atlas: &BlockIndex) -> Result<Vec<Place>> {
        let mut places = Vec::new();
        let mut missing = Vec::new();
        for family in families(atlas) {
            match self.settings.preference.choose(&mut self.host, family == IpFamily::V4) {
                Ok(uplink) => {
                    let all = address::list(&mut self.host.route, 0).map_err(podwire_overlay::Error::from)?;
                    let same = all.iter().find(|one| one.ip == uplink.address);
                    let length = same.map_or(family.bits(), |one| one.prefix);
                    places.push((uplink, length));
                }
                Err(error) => missing.push(error.to_string()),
            }
        }
        self.board.problem("interface", (!missing.is_empty()).then(|| missing.join("; ")));
        Ok(places)
    }

    fn listen(&mut self, places: &[Place]) -> Result<()> {
        let uplinks: Vec<Uplink> = places.iter().map(|(uplink, _)| uplink.clone()).collect();
        if uplinks == self.uplinks && self.watch.is_some() {
            return Ok(());
        }
        let names: Vec<&str> = uplinks.iter().map(|uplink| uplink.name.as_str()).collect();
        self.watch = Some(match names.is_empty() {
            true => Watch::for_uplinks(&mut self.host)?,
            false => Watch::open(&mut self.host, &Blocks::devices(), &names)?,
        });
        self.uplinks = uplinks;
        Ok(())
    }

    /// The plugin reads it where no MTU is configured.
    fn tell_mtu(&self, mtu: u32) -> Result<()> {
        let Some(path) = self.settings.mtu_file.as_ref().filter(|_| mtu > 0) else { return Ok(()) };
        let text = mtu.to_string();
        if std::fs::read_to_string(path).is_ok_and(|there| there == text) {
            return Ok(());
        }
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(Error::file("make", folder))?;
        }
        // Whole, at once: a plugin that read half of it would make a pod's network of it.
        let new = path.with_extension("new");
        std::fs::write(&new, text).map_err(Error::file("write", &new))?;
        std::fs::rename(&new, path).map_err(Error::file("write", path))
    }

    fn show(&self, plan: &Plan, refused: Vec<(String, String)>) {
        let mut status = self.board.lock();
        for (node, why) in refused.iter().filter(|one| !status.refused.contains(one)) {
            warn!(node, why, "no road");
        }
        let mut peers: Vec<&str> =
            plan.blocks.stretches.iter().map(|stretch| stretch.node.as_str()).collect();
        peers.sort_unstable();
        peers.dedup();
        if !status.ready {
            info!(peers = peers.len(), "the roads are open");
        }
        status.ready = true;
        status.uplinks =
            plan.blocks.uplinks.iter().map(|one| format!("{} {}", one.name, one.address)).collect();
        status.blocks = plan.cluster.own.sides.iter().map(|side| side.pods.to_string()).collect();
        status.peers = peers.len();
        status.routes = plan.blocks.stretches.len();
        status.mtu = plan.mtu;
        status.refused = refused;
    }

    /// The store is told what it does not know of this node; of the same thing once in a while. At the beginning the registrar is asked in any
    /// case: while nobody was here much may have been released.
    fn register(&mut self, plan: &Plan) {
        match &self.asked {
            Asked::For(..) | Asked::Done if plan.is_known => self.asked = Asked::Done,
            Asked::For(wish, when) if *wish == plan.wish && when.elapsed() < REMINDER => {}
            _ => {
                self.asked = Asked::For(plan.wish.clone(), Instant::now());
                let _ = self.lines.wishes.send(plan.wish.clone());
            }
        }
    }

    /// Until something was touched, something was learned, or the time is over.
    fn wait(&mut self, rest: Duration) -> Result<()> {
        let Some(watch) = &mut self.watch else {
            std::thread::park_timeout(AGAIN);
            return Ok(());
        };
        match watch.wait(rest, Some(self.lines.bell.as_fd()))? {
            // Rings that nobody hears any more: whoever rang has told before.
            News::Called => drop(self.lines.bell.read(&mut [0; 256])),
            News::Touched(what) => debug!(?what, "touched"),
            News::Quiet => {}
        }
        Ok(())
    }
}
