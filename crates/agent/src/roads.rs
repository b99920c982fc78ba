//! The thread that owns the kernel's side: it makes the roads of the latest plan, and looks again whenever something of ours
//! was touched, whenever a plan comes or the runtime's folder changes, and every while in any case.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};

use podwire_kernel::{sysctl, Host};
use podwire_netlink::sys;
use podwire_overlay::{News, Objects, Preference, Road, Uplink, Watch};
use podwire_subnets::NetConf;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tracing::{debug, info};

use crate::backend::Backend;
use crate::plan::{self, Plan};
use crate::{rivals, Error, Result, Settings};

/// After a failure all is tried again after this.
const AGAIN: Duration = Duration::from_secs(1);

/// Looking without a reason takes at most this share of a core: one part in so many.
const RARELY: u32 = 1000;
/// But it is done this often in any case.
const AT_LEAST: Duration = Duration::from_secs(300);

/// How long to rest after a comparison that took so long. In a cluster of thousands one takes some fifty milliseconds.
fn rest_after(took: Duration, resync: Duration) -> Duration {
    resync.max((took * RARELY).min(AT_LEAST))
}

/// What the thread has to tell.
#[derive(Debug)]
pub(crate) enum Told {
    /// The roads are as planned, as far as that is possible.
    Made(Made),
    /// They could not be made. What was there is as it was.
    Failed(String),
    /// The node is reached at another address or through another interface than before.
    Moved(Vec<Uplink>),
}

/// How it went.
#[derive(Debug)]
pub(crate) struct Made {
    pub uplinks: Vec<Uplink>,
    /// The largest packet that a pod may send.
    pub mtu: u32,
    pub peers: usize,
    pub changes: usize,
    /// What the kernel refused.
    pub failed: Vec<String>,
    /// Nodes without a road, and why.
    pub refused: Vec<(String, String)>,
    pub roads: Vec<Road>,
    pub objects: Objects,
    pub took: Duration,
}

/// The thread, as the others see it. It ends when this is dropped.
pub(crate) struct Roads {
    plans: Sender<Plan>,
    bell: File,
    told: UnboundedReceiver<Told>,
}

impl Roads {
    pub fn start(settings: &Settings) -> Result<Roads> {
        let (plans, orders) = mpsc::channel();
        let (tell, told) = tokio::sync::mpsc::unbounded_channel();
        let (hear, bell) = sys::pipe().map_err(Error::file("make", "a pipe"))?;
        let bell = File::from(bell);
        if let Some(conflist) = &settings.conflist {
            rivals::watch(&conflist.path, bell.try_clone().map_err(Error::file("copy", "a pipe"))?);
        }
        let host = Host::here()?;
        let settings = settings.clone();
        let mut work = Work {
            settings,
            orders,
            bell: hear.into(),
            tell,
            host,
            plan: None,
            watch: None,
            uplinks: Vec::new(),
            alone: false,
        };
        std::thread::Builder::new()
            .name("roads".into())
            .spawn(move || work.run())
            .map_err(Error::file("start", "the thread of the roads"))?;
        Ok(Roads { plans, bell, told })
    }

    /// From now on these are the roads to be.
    pub fn plan(&mut self, plan: Plan) -> Result<()> {
        self.plans.send(plan).map_err(|_| Error::RoadsEnded)?;
        self.bell.write_all(b"!").map_err(|_| Error::RoadsEnded)
    }

    /// What the thread has to tell next. May be cancelled.
    pub async fn told(&mut self) -> Result<Told> {
        self.told.recv().await.ok_or(Error::RoadsEnded)
    }
}

/// Where the node meets the others, for each family that pods have.
pub(crate) fn uplinks(host: &mut Host, preference: &Preference, conf: &NetConf) -> Result<Vec<Uplink>> {
    let choose = |v4: bool| Ok(preference.choose(host, v4)?);
    plan::families(conf).into_iter().map(choose).collect()
}

struct Work {
    settings: Settings,
    orders: Receiver<Plan>,
    bell: File,
    tell: UnboundedSender<Told>,
    host: Host,
    plan: Option<Plan>,
    watch: Option<Watch>,
    uplinks: Vec<Uplink>,
    /// flanneld's rules are gone: this node had it before.
    alone: bool,
}

impl Work {
    fn run(&mut self) {
        // Without a plan there is nothing to do and nothing to listen to.
        let Ok(first) = self.orders.recv() else { return };
        self.plan = Some(first);
        loop {
            match self.latest() {
                Ok(()) => {}
                Err(()) => return,
            }
            let rest = match self.make() {
                Ok(took) => rest_after(took, self.settings.resync),
                Err(error) => {
                    if self.tell.send(Told::Failed(error.to_string())).is_err() {
                        return;
                    }
                    AGAIN
                }
            };
            if self.wait(rest).is_err() {
                // Deaf, it can still look.
                self.watch = None;
                drop(self.wait(AGAIN));
            }
        }
    }

    /// Takes the last of the plans that came.
    fn latest(&mut self) -> Result<(), ()> {
        loop {
            match self.orders.try_recv() {
                Ok(plan) => self.plan = Some(plan),
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => return Err(()),
            }
        }
    }

    /// Returns how long it took.
    fn make(&mut self) -> Result<Duration> {
        let Some(plan) = &self.plan else { return Ok(Duration::ZERO) };
        let start = Instant::now();
        let uplinks = uplinks(&mut self.host, &plan.preference, &plan.conf)?;
        if uplinks != self.uplinks || self.watch.is_none() {
            let devices = plan.backend.devices();
            let devices: Vec<&str> = devices.iter().map(String::as_str).collect();
            let names: Vec<&str> = uplinks.iter().map(|uplink| uplink.name.as_str()).collect();
            self.watch = Some(Watch::open(&mut self.host, &devices, &names)?);
            let has_moved = !self.uplinks.is_empty() && uplinks != self.uplinks;
            self.uplinks.clone_from(&uplinks);
            if has_moved {
                let _ = self.tell.send(Told::Moved(uplinks.clone()));
            }
        }
        let families = plan::families(&plan.conf);
        sysctl::forward(families.contains(&true), families.contains(&false))?;
        let (cluster, refused) = plan.cluster(&uplinks);
        let fabric = plan.backend.fabric();
        let report = podwire_overlay::apply(&mut self.host, fabric, &cluster, &self.settings.firewall)?;
        if !self.alone {
            // Ours stand: those of flanneld would translate what ours leave alone.
            let retired = podwire_kernel::firewall::cluster::flannel::retire(self.host.nft()?)?;
            if retired > 0 {
                info!(retired, "flanneld's rules were taken away");
            }
            self.alone = true;
        }
        for change in &report.changed {
            info!(change, "roads");
        }
        let mut failed: Vec<String> = report.failed.iter().map(ToString::to_string).collect();
        let mut changes = report.changed.len();
        if let (Backend::Extension(extension), true) = (&plan.backend, plan.nodes.is_some()) {
            let (done, not_done) = extension.apply(&plan.neighbours())?;
            changes += done.len();
            failed.extend(not_done);
        }
        let refused = refused.into_iter().map(|one| (one.name, one.reason));
        let took = start.elapsed();
        let made = Made {
            mtu: fabric.mtu(&cluster.own),
            uplinks,
            peers: cluster.peers.len(),
            changes,
            failed,
            refused: refused.chain(report.refused.into_iter().map(|one| (one.peer, one.why))).collect(),
            roads: report.roads,
            objects: report.objects,
            took,
        };
        let _ = self.tell.send(Told::Made(made));
        Ok(took)
    }

    /// Until something was touched, a plan came, or the time is over.
    fn wait(&mut self, rest: Duration) -> Result<()> {
        let news = match &mut self.watch {
            Some(watch) => watch.wait(rest, Some(self.bell.as_fd()))?,
            None => {
                let ready =
                    sys::readable(&[self.bell.as_fd()], rest).map_err(Error::file("wait for", "plans"))?;
                if ready == [true] {
                    News::Called
                } else {
                    News::Quiet
                }
            }
        };
        match news {
            News::Called => {
                // Rings that nobody hears any more: whoever rang has sent a plan before. 0 bytes: the other side is gone,
                // which the channel of plans tells too.
                let _ = self.bell.read(&mut [0; 256]);
            }
            News::Touched(what) => debug!(?what, "touched"),
            News::Quiet => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_it_takes_to_look_the_rarer_it_is_done() {
        let (usual, millis) = (Duration::from_secs(30), Duration::from_millis);
        assert_eq!(rest_after(millis(2), usual), usual);
        assert_eq!(rest_after(millis(50), usual), Duration::from_secs(50));
        assert_eq!(rest_after(millis(9000), usual), AT_LEAST);
        assert_eq!(rest_after(millis(9000), Duration::from_secs(600)), Duration::from_secs(600));
    }
}
