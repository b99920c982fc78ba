//! A cluster with one store, which counts requests and fails on demand.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use podwire_agent::calico::allocator::{BlockAllocator, Settings};
use podwire_agent_ipc::addresses::AddressRequest;
use podwire_agent_ipc::{pending, Owner};
use podwire_block_ipam::store::{Entry, Follow, Memory, Revision, Store, StoreError};
use podwire_block_ipam::timestamp::Timestamp;
use podwire_block_ipam::{Allocator, Ownership, Pool, Rules};

/// A store in memory that counts requests and fails on demand.
#[derive(Default)]
pub(crate) struct FlakyStore {
    pub(crate) store: Mutex<Memory>,
    asked: AtomicUsize,
    mode: Mutex<Mode>,
    /// Keys with this suffix are not written.
    pub(crate) forbidden: Mutex<Option<&'static str>>,
    /// Locked by a test that delays the creation of blocks, affinities and handles.
    pub(crate) claims: Mutex<()>,
}

#[derive(Clone, Copy, Default, PartialEq)]
pub(crate) enum Mode {
    #[default]
    Working,
    Down,
    /// Writes are done, but their responses are lost.
    Mute,
}

#[derive(Clone)]
pub(crate) struct Shared(pub(crate) Arc<FlakyStore>);

impl Shared {
    fn ask<T>(
        &self,
        is_write: bool,
        act: impl FnOnce(&Memory) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.0.asked.fetch_add(1, Ordering::SeqCst);
        let down = |why: &str| {
            let (store, key) = ("flaky".into(), String::new());
            Err(StoreError::Unavailable { store, verb: "answer", key, why: why.into() })
        };
        let mode = *self.0.mode.lock().unwrap();
        let store = self.0.store.lock().unwrap();
        match mode {
            Mode::Working => act(&store),
            Mode::Down => down("it is down"),
            Mode::Mute if is_write => act(&store).and_then(|_| down("the response is lost")),
            Mode::Mute => act(&store),
        }
    }

    fn allow(&self, key: &str) -> Result<(), StoreError> {
        match *self.0.forbidden.lock().unwrap() {
            Some(end) if key.ends_with(end) => {
                let (store, key) = ("flaky".into(), key.into());
                Err(StoreError::Unavailable { store, verb: "write", key, why: "it is forbidden".into() })
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn asked(&self) -> usize {
        self.0.asked.load(Ordering::SeqCst)
    }

    pub(crate) fn set(&self, mode: Mode) {
        *self.0.mode.lock().unwrap() = mode;
    }
}

impl Store for Shared {
    fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        self.ask(false, |store| store.get(key))
    }

    fn list(&self, prefix: &str) -> Result<Vec<Entry>, StoreError> {
        self.ask(false, |store| store.list(prefix))
    }

    fn create(&self, key: &str, value: &[u8]) -> Result<Revision, StoreError> {
        self.allow(key)?;
        let _claim = key.starts_with("/calico/ipam/").then(|| self.0.claims.lock().unwrap());
        self.ask(true, |store| store.create(key, value))
    }

    fn update(&self, key: &str, value: &[u8], revision: Revision) -> Result<Revision, StoreError> {
        self.allow(key)?;
        self.ask(true, |store| store.update(key, value, revision))
    }

    fn delete(&self, key: &str, revision: Revision) -> Result<(), StoreError> {
        self.ask(true, |store| store.delete(key, revision))
    }

    fn follow(&self, prefixes: &[&str]) -> Result<Box<dyn Follow>, StoreError> {
        self.ask(false, |store| store.follow(prefixes))
    }
}

/// A cluster with one store.
pub(crate) struct Cluster {
    pub(crate) store: Shared,
    pub(crate) dir: PathBuf,
}

pub(crate) fn now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    Timestamp::from_unix_nanos(since.as_nanos() as u64)
}

impl Cluster {
    pub(crate) fn new(name: &str, pool: Pool) -> Cluster {
        let store = Shared(Arc::default());
        Allocator::new(&store, now).add_pool(&pool).unwrap();
        let dir = std::env::temp_dir().join(format!("podwire-agent-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        Cluster { store, dir }
    }

    pub(crate) fn state(&self, node: &str) -> PathBuf {
        self.dir.join(node)
    }

    pub(crate) fn agent(&self, node: &str) -> BlockAllocator {
        self.agent_in(node, node, Ownership::DURATION)
    }

    /// An agent with another state directory: of another machine.
    pub(crate) fn agent_in(&self, dir: &str, node: &str, claim: Duration) -> BlockAllocator {
        let store = self.store.clone();
        let settings = Settings { node: node.into(), warm_addresses: 4, claim };
        BlockAllocator::start(settings, &self.state(dir), Box::new(move || Ok(Box::new(store.clone()))))
            .unwrap()
    }

    /// The handles of pods and their addresses.
    pub(crate) fn held(&self) -> BTreeSet<(String, IpAddr)> {
        let blocks = Allocator::new(&self.store, now).blocks().unwrap().into_iter().flatten();
        blocks
            .flat_map(|block| {
                let held =
                    block.allocations().map(|one| (one.attribute.handle().unwrap_or("").to_owned(), one.ip));
                held.collect::<Vec<_>>()
            })
            .filter(|(handle, _)| !handle.starts_with("podwire-warm-"))
            .collect()
    }

    /// Checks that blocks, handles and affinities agree once everything is written.
    pub(crate) fn assert_sound(&self) {
        let rules = Rules::load(&self.store).unwrap();
        let problems = || Allocator::new(&self.store, now).check(&rules).unwrap().problems;
        eventually("blocks, handles and affinities agree", || problems().is_empty());
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

pub(crate) fn pool() -> Pool {
    Pool::new("pods", "10.244.0.0/24".parse().unwrap()).with_block_size(28)
}

pub(crate) fn owner(container: &str) -> Owner {
    Owner { network: "net".into(), container: container.into(), ifname: "eth0".into() }
}

pub(crate) fn v4() -> AddressRequest {
    AddressRequest {
        namespace: "shop".into(),
        pod: "web".into(),
        ipv4_pools: Some(Vec::new()),
        ..AddressRequest::default()
    }
}

pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < until, "{what}: not within {TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until the agent makes no more requests to the store.
pub(crate) fn wait_for_idle(cluster: &Cluster) {
    eventually("the sync is idle", || {
        let before = cluster.store.asked();
        std::thread::sleep(Duration::from_millis(50));
        cluster.store.asked() == before
    });
}

pub(crate) fn settled(agent: &BlockAllocator, dir: &Path) -> bool {
    let notes = std::fs::read_dir(pending::released_dir(dir)).unwrap().count();
    agent.status().unsynced == 0 && notes == 0
}
