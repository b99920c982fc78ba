//! The roads of a node whose pods are routed.
//!
//! The store says which node has which block of addresses ([`podwire_block_ipam::BlockIndex`]). From that follow the routes and tunnels of
//! this node ([`podwire_overlay::Blocks`]), and what BGP tells the routers outside.
//!
//! ```text
//!            news                    plan                        routes, tunnels, nat-outgoing
//!  store ──▶ survey ──▶ atlas ──▶ [ works ] ──────────────────▶ kernel
//!    ▲                               │  │                          │ notices: something of ours was touched
//!    └── registrar ◀── wish ─────────┘  └──▶ speaker ──▶ BIRD      └──▶ works
//!        (this node's address, the ends of its tunnels)
//! ```
//!
//! - The **survey** follows the store, and tells what it has learned. While the store is away, what was learned stays.
//! - The **works** make the kernel so: all is compared, whenever something was learned or touched.
//! - The **registrar** tells the store where this node is met, and gets the addresses of its tunnels' ends.
//! - The **speaker** writes BIRD's config and sees to it that BIRD runs, if BGP is wanted.
//!
//! Nothing here is on the way of a packet: whoever kills it stops no traffic.

#![forbid(unsafe_code)]

mod bird;
mod error;
mod plan;
mod registrar;
mod status;
mod survey;
mod works;

use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use podwire_block_ipam::store::{Store, StoreError};
use podwire_overlay::Preference;

pub use bird::Bird;
pub use error::{Error, Result};
pub use status::{Board, Status};

/// Opens the store, each time as one more client of it.
pub type Opener = Box<dyn Fn() -> Result<Box<dyn Store>, StoreError> + Send + Sync>;

/// What it is told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The node's name, as the store knows it.
    pub node: String,
    /// Which interface the others are met at.
    pub preference: Preference,
    /// The MTU of the network between the nodes, if it is not that of the interface.
    pub mtu: Option<u32>,
    /// Where the largest size of a pod's packets is written, for the plugin.
    pub mtu_file: Option<PathBuf>,
    /// BIRD, if BGP is wanted.
    pub bird: Option<Bird>,
    /// How often all is compared when nothing was heard.
    pub resync: Duration,
}

/// Whether Kubernetes has a node of this name, as far as is known.
pub type IsMember = Box<dyn Fn() -> bool + Send>;

/// Builds the roads from now on, in threads of its own. Returns where it is told how that goes. Of a node that is one of Kubernetes the store is
/// told so: when Kubernetes has it no longer, others may clean up behind it.
pub fn start(settings: Settings, opener: Opener, is_member: IsMember) -> Result<Board> {
    let board = Board::default();
    let opener = std::sync::Arc::new(opener);
    let (ring, bell) = bell()?;
    let (told, atlases) = mpsc::channel();
    let (wishes, wished) = mpsc::channel();
    let (sketches, sketched) = mpsc::channel();
    survey::start(opener.clone(), settings.bird.is_some(), told, ring, board.clone())?;
    registrar::start(settings.node.clone(), opener, wished, board.clone())?;
    if let Some(bird) = settings.bird.clone() {
        bird::start(bird, settings.node.clone(), sketched, board.clone())?;
    }
    works::start(settings, is_member, works::Lines { atlases, bell, wishes, sketches }, board.clone())?;
    Ok(board)
}

/// A pipe: who writes into it wakes who reads.
fn bell() -> Result<(std::fs::File, std::fs::File)> {
    let (hear, ring) = podwire_netlink::sys::pipe().map_err(Error::file("make", "a pipe"))?;
    Ok((ring.into(), hear.into()))
}

/// A thread with a name.
fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    let started = std::thread::Builder::new().name(name.into()).spawn(work);
    started.map(drop).map_err(Error::file("start", "a thread"))
}

/// What failed is tried again after this, and after twice of it, and so on.
struct Patience(Duration);

impl Patience {
    const FIRST: Duration = Duration::from_millis(100);
    /// No longer than nodes promise to need until all is well again.
    const LONGEST: Duration = Duration::from_millis(1500);

    fn new() -> Patience {
        Patience(Patience::FIRST)
    }

    fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(Patience::LONGEST);
        pause
    }
}
