//! A cluster with one store, which counts, fails and is slow as it is told.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use podwire_agent_ipc::addresses::AddressRequest;
use podwire_agent_ipc::{pending, Owner};
use podwire_block_ipam::moment::Moment;
use podwire_block_ipam::store::{Entry, Memory, Revision, Store, StoreError};
use podwire_block_ipam::{Allocator, Pool, Rules};
use podwire_steward::{Settings, Steward};

/// A store in memory that counts, fails and is slow as it is told.
#[derive(Default)]
pub(crate) struct Moody {
    pub(crate) store: Mutex<Memory>,
    asked: AtomicUsize,
    mood: Mutex<Mood>,
    /// What ends so is not written.
    pub(crate) forbidden: Mutex<Option<&'static str>>,
}

#[derive(Clone, Copy, Default, PartialEq)]
pub(crate) enum Mood {
    #[default]
    Well,
    Away,
    /// Writes are done, and not answered.
    Mute,
}

#[derive(Clone)]
pub(crate) struct Shared(pub(crate) Arc<Moody>);

impl Shared {
    fn ask<T>(
        &self,
        is_write: bool,
        act: impl FnOnce(&Memory) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.0.asked.fetch_add(1, Ordering::SeqCst);
        let away = |why: &str| {
            let (store, key) = ("moody".into(), String::new());
            Err(StoreError::Unavailable { store, verb: "answer", key, why: why.into() })
        };
        let mood = *self.0.mood.lock().unwrap();
        let store = self.0.store.lock().unwrap();
        match mood {
            Mood::Well => act(&store),
            Mood::Away => away("it is away"),
            Mood::Mute if is_write => act(&store).and_then(|_| away("it has lost its voice")),
            Mood::Mute => act(&store),
        }
    }

    fn allow(&self, key: &str) -> Result<(), StoreError> {
        match *self.0.forbidden.lock().unwrap() {
            Some(end) if key.ends_with(end) => {
                let (store, key) = ("moody".into(), key.into());
                Err(StoreError::Unavailable { store, verb: "write", key, why: "it is forbidden".into() })
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn asked(&self) -> usize {
        self.0.asked.load(Ordering::SeqCst)
    }

    pub(crate) fn set(&self, mood: Mood) {
        *self.0.mood.lock().unwrap() = mood;
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
        self.ask(true, |store| store.create(key, value))
    }

    fn update(&self, key: &str, value: &[u8], revision: Revision) -> Result<Revision, StoreError> {
        self.allow(key)?;
        self.ask(true, |store| store.update(key, value, revision))
    }

    fn delete(&self, key: &str, revision: Revision) -> Result<(), StoreError> {
        self.ask(true, |store| store.delete(key, revision))
    }
}

/// A cluster with one store.
pub(crate) struct Cluster {
    pub(crate) store: Shared,
    pub(crate) folder: PathBuf,
}

pub(crate) fn now() -> Moment {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    Moment::from_unix_nanos(since.as_nanos() as u64)
}

impl Cluster {
    pub(crate) fn new(name: &str, pool: Pool) -> Cluster {
        let store = Shared(Arc::default());
        Allocator::new(&store, now).add_pool(&pool).unwrap();
        let folder = std::env::temp_dir().join(format!("podwire-steward-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        Cluster { store, folder }
    }

    pub(crate) fn state(&self, node: &str) -> PathBuf {
        self.folder.join(node)
    }

    pub(crate) fn steward(&self, node: &str) -> Steward {
        let store = self.store.clone();
        let settings = Settings { node: node.into(), stock: 4 };
        Steward::start(settings, &self.state(node), Box::new(move || Ok(Box::new(store.clone())))).unwrap()
    }

    /// Handles that have addresses, with those.
    pub(crate) fn held(&self) -> BTreeSet<(String, IpAddr)> {
        let blocks = Allocator::new(&self.store, now).blocks().unwrap().into_iter().flatten();
        blocks
            .flat_map(|block| {
                let held =
                    block.allocations().map(|one| (one.attribute.handle().unwrap_or("").to_owned(), one.ip));
                held.collect::<Vec<_>>()
            })
            .filter(|(handle, _)| !handle.starts_with("podwire-stock-"))
            .collect()
    }

    /// That blocks, handles and claims agree, when all is written.
    pub(crate) fn assert_sound(&self) {
        let rules = Rules::load(&self.store).unwrap();
        let problems = || Allocator::new(&self.store, now).check(&rules).unwrap().problems;
        eventually("blocks, handles and claims agree", || problems().is_empty());
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
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

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn settled(steward: &Steward, folder: &Path) -> bool {
    let notes = std::fs::read_dir(pending::released_dir(folder)).unwrap().count();
    steward.state().untold == 0 && notes == 0
}
