//! Pods come and go, agents are killed, stores fail: nobody has an address twice, and none is lost.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use api::blocks::{Answer, Lease, Question, Wish};
use api::{notes, Owner};
use ipam::blocks::{Allocator, Pool, Request, Rules};
use ipam::moment::Moment;
use ipam::store::{Entry, Memory, Revision, Store, StoreError};
use steward::{Error, Settings, Steward};

/// A store in memory that counts, fails and is slow as it is told.
#[derive(Default)]
struct Moody {
    store: Mutex<Memory>,
    asked: AtomicUsize,
    mood: Mutex<Mood>,
    /// What ends so is not written.
    forbidden: Mutex<Option<&'static str>>,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Mood {
    #[default]
    Well,
    Away,
    /// Writes are done, and not answered.
    Mute,
}

#[derive(Clone)]
struct Shared(Arc<Moody>);

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

    fn asked(&self) -> usize {
        self.0.asked.load(Ordering::SeqCst)
    }

    fn set(&self, mood: Mood) {
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
struct Cluster {
    store: Shared,
    folder: PathBuf,
}

fn now() -> Moment {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    Moment::from_unix_nanos(since.as_nanos() as u64)
}

impl Cluster {
    fn new(name: &str, pool: Pool) -> Cluster {
        let store = Shared(Arc::default());
        Allocator::new(&store, now).add_pool(&pool).unwrap();
        let folder = std::env::temp_dir().join(format!("podwire-steward-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        Cluster { store, folder }
    }

    fn state(&self, node: &str) -> PathBuf {
        self.folder.join(node)
    }

    fn steward(&self, node: &str) -> Steward {
        let store = self.store.clone();
        let settings = Settings { node: node.into(), stock: 4 };
        Steward::start(settings, &self.state(node), Box::new(move || Ok(Box::new(store.clone())))).unwrap()
    }

    /// Handles that have addresses, with those.
    fn held(&self) -> BTreeSet<(String, IpAddr)> {
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
    fn assert_sound(&self) {
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

fn pool() -> Pool {
    Pool::new("pods", "10.244.0.0/24".parse().unwrap()).with_block_size(28)
}

fn owner(container: &str) -> Owner {
    Owner { network: "net".into(), container: container.into(), ifname: "eth0".into() }
}

fn v4() -> Wish {
    Wish { namespace: "shop".into(), pod: "web".into(), v4: Some(Vec::new()), ..Wish::default() }
}

const PATIENCE: Duration = Duration::from_secs(20);

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn settled(steward: &Steward, folder: &Path) -> bool {
    let notes = std::fs::read_dir(notes::released(folder)).unwrap().count();
    steward.state().untold == 0 && notes == 0
}

#[test]
fn a_pod_gets_its_address_at_once_and_the_store_hears_of_it() {
    let cluster = Cluster::new("warm", pool());
    let steward = cluster.steward("node1");
    eventually("a stock", || steward.state().stock == 4);
    let given = steward.assign(&owner("c1"), &v4(), PATIENCE).unwrap();
    assert_eq!(given.len(), 1);
    assert_eq!(given[0].prefix_len(), 28);
    assert_eq!(steward.assign(&owner("c1"), &v4(), PATIENCE).unwrap(), given, "who asks again gets the same");
    eventually("the store knows", || cluster.held() == [("net.c1".to_owned(), given[0].addr())].into());
    let block = Allocator::new(&cluster.store, now).blocks().unwrap().remove(0).unwrap();
    let known = block.allocation(given[0].addr()).unwrap().attribute.secondary.clone();
    assert_eq!(
        (known["namespace"].as_str(), known["pod"].as_str(), known["node"].as_str()),
        ("shop", "web", "node1")
    );
    assert!(known.contains_key("timestamp"), "{known:?}");
    cluster.assert_sound();
    steward.release(&owner("c1"), Some("shop.web")).unwrap();
    eventually("it is free", || cluster.held().is_empty() && settled(&steward, &cluster.state("node1")));
    cluster.assert_sound();
}

#[test]
fn a_warm_add_and_a_del_ask_the_store_nothing() {
    let cluster = Cluster::new("zero", pool());
    let steward = cluster.steward("node1");
    eventually("a stock", || steward.state().stock == 4);
    eventually("the clerk rests", || {
        let before = cluster.store.asked();
        std::thread::sleep(Duration::from_millis(50));
        cluster.store.asked() == before
    });
    cluster.store.set(Mood::Away);
    let one = steward.assign(&owner("c1"), &v4(), Duration::ZERO).unwrap();
    let other = steward.assign(&owner("c2"), &v4(), Duration::ZERO).unwrap();
    assert_ne!(one, other);
    steward.release(&owner("c1"), None).unwrap();
    cluster.store.set(Mood::Well);
    eventually("the store has caught up", || {
        cluster.held() == [("net.c2".to_owned(), other[0].addr())].into()
    });
}

#[test]
fn with_the_store_away_and_nothing_in_stock_an_add_is_told_to_come_again() {
    let cluster = Cluster::new("away", pool());
    cluster.store.set(Mood::Away);
    let steward = cluster.steward("node1");
    let error = steward.assign(&owner("c1"), &v4(), Duration::from_millis(300)).unwrap_err();
    assert_eq!(error.code(), 11, "{error}");
    assert!(error.to_string().contains("it is away"), "{error}");
    eventually("it is not ready", || steward.is_ready().is_err());
    steward.release(&owner("c1"), None).unwrap();
    cluster.store.set(Mood::Well);
    steward.assign(&owner("c1"), &v4(), PATIENCE).unwrap();
    eventually("it is ready", || steward.is_ready().is_ok());
}

#[test]
fn an_agent_that_is_killed_finds_everything_again() {
    let cluster = Cluster::new("killed", pool());
    let state = cluster.state("node1");
    let steward = cluster.steward("node1");
    eventually("a stock", || steward.state().stock == 4);
    cluster.store.set(Mood::Away);
    let kept = steward.assign(&owner("kept"), &v4(), PATIENCE).unwrap();
    steward.assign(&owner("gone"), &v4(), PATIENCE).unwrap();
    steward.release(&owner("gone"), None).unwrap();
    // Another life, elsewhere: the clerk of this one holds the lock until its process ends. The store hears no more of it.
    let copy = cluster.state("node1-again");
    copy_tree(&state, &copy);
    let store = Shared(Arc::default());
    for entry in cluster.store.0.store.lock().unwrap().list("").unwrap() {
        store.create(&entry.key, &entry.value).unwrap();
    }
    let cluster = Cluster { store: store.clone(), folder: cluster.folder.clone() };
    let settings = Settings { node: "node1".into(), stock: 4 };
    let again = Steward::start(settings, &copy, Box::new(move || Ok(Box::new(store.clone())))).unwrap();
    eventually("the store knows of the one", || {
        cluster.held() == [("net.kept".to_owned(), kept[0].addr())].into()
    });
    assert_eq!(again.lease(&owner("kept")).unwrap().addresses, kept);
    let mut seen: BTreeSet<_> = kept.iter().copied().collect();
    for number in 0..14 {
        let given = again.assign(&owner(&format!("c{number}")), &v4(), PATIENCE).unwrap();
        assert!(seen.insert(given[0]), "{given:?} was given twice");
    }
    eventually("all is told", || cluster.held().len() == 15);
    cluster.assert_sound();
}

fn copy_tree(from: &Path, to: &Path) {
    for folder in ["leases", "released"] {
        std::fs::create_dir_all(to.join(folder)).unwrap();
        for file in std::fs::read_dir(from.join(folder)).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), to.join(folder).join(file.file_name())).unwrap();
        }
    }
}

#[test]
fn leases_of_an_earlier_boot_are_given_back() {
    let cluster = Cluster::new("boot", pool());
    let state = cluster.state("node1");
    std::fs::create_dir_all(notes::leases(&state)).unwrap();
    let lease = api::blocks::Lease {
        owner: owner("old"),
        addresses: vec!["10.244.0.1/28".parse().unwrap()],
        boot: "another".into(),
        ..api::blocks::Lease::default()
    };
    notes::write(&notes::leases(&state), &notes::file_name(&lease.owner), &lease).unwrap();
    let allocator = Allocator::new(&cluster.store, now);
    let rules = Rules::load(&cluster.store).unwrap();
    let request = ipam::blocks::Request::new(ipam::blocks::Owner::host("node1"), "net.old");
    allocator.assign_address(&rules, &request, "10.244.0.1".parse().unwrap()).unwrap();
    let steward = cluster.steward("node1");
    eventually("it is free", || cluster.held().is_empty() && settled(&steward, &state));
    assert_eq!(steward.state().leases, 0);
    cluster.assert_sound();
}

#[test]
fn answers_that_are_lost_leave_nothing_behind() {
    let cluster = Cluster::new("mute", pool());
    let steward = cluster.steward("node1");
    eventually("a stock", || steward.state().stock == 4);
    for round in 0..6 {
        cluster.store.set(if round % 2 == 0 { Mood::Mute } else { Mood::Well });
        for number in 0..3 {
            let _ = steward.assign(&owner(&format!("c{round}-{number}")), &v4(), Duration::from_millis(200));
        }
        for number in 0..2 {
            steward.release(&owner(&format!("c{round}-{number}")), None).unwrap();
        }
    }
    cluster.store.set(Mood::Well);
    eventually("all is told", || settled(&steward, &cluster.state("node1")));
    let known: BTreeSet<_> = (0..6)
        .filter_map(|round| steward.lease(&owner(&format!("c{round}-2"))))
        .map(|lease| (format!("net.{}", lease.owner.container), lease.addresses[0].addr()))
        .collect();
    eventually("the store says the same", || cluster.held() == known);
}

#[test]
fn several_nodes_at_once_share_a_pool_and_borrow_without_a_double() {
    // Four blocks of four addresses for three nodes and thirteen pods.
    let pool = Pool::new("pods", "10.244.0.0/28".parse().unwrap()).with_block_size(30);
    let cluster = Cluster::new("crowd", pool);
    let stewards: Vec<Steward> = (1..4).map(|number| cluster.steward(&format!("node{number}"))).collect();
    let given = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for (node, steward) in stewards.iter().enumerate() {
            let given = &given;
            scope.spawn(move || {
                for number in 0..4 {
                    let pod = owner(&format!("n{node}-{number}"));
                    let got = steward.assign(&pod, &v4(), PATIENCE).unwrap();
                    given.lock().unwrap().push(got[0].addr());
                }
            });
        }
    });
    let given = given.into_inner().unwrap();
    assert_eq!(given.iter().collect::<BTreeSet<_>>().len(), 12, "{given:?}");
    eventually("all is told", || cluster.held().len() == 12);
    let held: BTreeSet<IpAddr> = cluster.held().into_iter().map(|(_, ip)| ip).collect();
    assert_eq!(held, given.into_iter().collect());
    cluster.assert_sound();
}

#[test]
fn wishes_that_cannot_be_granted_are_told_why() {
    let cluster = Cluster::new("wishes", pool());
    let steward = cluster.steward("node1");
    let ask = |container: &str, wish: Wish| steward.assign(&owner(container), &wish, PATIENCE);
    let pools = |names: &[&str]| Wish { v4: Some(names.iter().map(ToString::to_string).collect()), ..v4() };
    let this = |ip: &str| Wish { ips: vec![ip.parse().unwrap()], ..v4() };
    let error = ask("a", pools(&["none"])).unwrap_err();
    assert!(matches!(&error, Error::Blocks(_)) && error.to_string().contains("none"), "{error}");
    assert_eq!(error.code(), 7);
    let error = ask("b", this("192.0.2.1")).unwrap_err();
    assert!(error.to_string().contains("192.0.2.1 is not in an enabled IP pool"), "{error}");
    let error = ask("c", Wish { v4: None, v6: Some(Vec::new()), ..v4() }).unwrap_err();
    assert!(error.to_string().contains("IPv6"), "{error}");
    assert_eq!(ask("d", this("10.244.0.77")).unwrap(), ["10.244.0.77/28".parse().unwrap()]);
    let other = Wish { pod: "other".into(), ..this("10.244.0.77") };
    let error = ask("e", other).unwrap_err();
    assert!(error.to_string().contains("belongs to"), "{error}");
    assert_eq!(ask("f", pools(&["pods"])).unwrap().len(), 1);
}

/// One pod's handle is damaged, before the store has heard of the pod or after: it alone keeps its address, until somebody mends it.
#[test]
fn a_handle_that_makes_no_sense_is_told_and_keeps_nobody_else_from_going() {
    let cluster = Cluster::new("handle", pool());
    let (steward, state) = (cluster.steward("node1"), cluster.state("node1"));
    eventually("a stock", || steward.state().stock == 4);
    let damage = |container: &str| {
        let key = format!("/calico/ipam/v2/handle/net.{container}");
        let there = cluster.store.get(&key).unwrap();
        let written = there.map(|entry| cluster.store.update(&key, b"damaged", entry.revision));
        written.unwrap_or_else(|| cluster.store.create(&key, b"damaged")).unwrap();
        key
    };
    // The store cannot be told of this one.
    let early = damage("early");
    steward.assign(&owner("early"), &v4(), PATIENCE).unwrap();
    for number in 0..3 {
        steward.assign(&owner(&format!("c{number}")), &v4(), PATIENCE).unwrap();
    }
    // An order is carried out whatever became of the others, and behind it all is told.
    eventually("all others are told", || cluster.held().len() == 3 && steward.state().untold == 1);
    let late = damage("c0");
    // Nobody here gave these: they are given back by their handles, and one of them is damaged.
    let strangers = damage("stranger");
    for container in ["early", "c0", "c1", "stranger", "unknown"] {
        steward.release(&owner(container), None).unwrap();
    }
    let is_left =
        |container: &str| notes::released(&state).join(notes::file_name(&owner(container))).exists();
    eventually("the others are given back", || !is_left("c1") && !is_left("unknown"));
    let handles = || cluster.held().into_iter().map(|(handle, _)| handle).collect::<Vec<_>>();
    eventually("the damaged ones stay", || handles() == ["net.c0", "net.c2"]);
    assert!(is_left("c0") && is_left("early") && is_left("stranger"));
    for key in [&early, &late, &strangers] {
        eventually("it is told", || steward.state().unreadable.iter().any(|text| text.contains(key)));
        let there = cluster.store.get(key).unwrap().unwrap();
        cluster.store.delete(key, there.revision).unwrap();
    }
    steward.assign(&owner("next"), &v4(), PATIENCE).unwrap();
    steward.release(&owner("next"), None).unwrap();
    eventually("mended, they are given back", || settled(&steward, &state) && handles() == ["net.c2"]);
    cluster.assert_sound();
}

#[test]
fn a_block_that_makes_no_sense_is_told_and_stops_nobody() {
    let cluster = Cluster::new("broken", pool());
    let steward = cluster.steward("node1");
    eventually("a stock", || steward.state().stock == 4);
    let before = steward.assign(&owner("before"), &v4(), PATIENCE).unwrap();
    eventually("all is told", || steward.state().untold == 0);
    let key = format!("/calico/ipam/v2/assignment/ipv4/block/{}-28", before[0].network());
    let entry = cluster.store.get(&key).unwrap().unwrap();
    cluster.store.update(&key, b"{\"cidr\": 1}", entry.revision).unwrap();
    for number in 0..8 {
        steward.assign(&owner(&format!("c{number}")), &v4(), PATIENCE).unwrap();
    }
    eventually("it is told", || steward.state().unreadable.iter().any(|text| text.contains(&key)));
    steward.release(&owner("before"), None).unwrap();
    let there = cluster.store.get(&key).unwrap().unwrap();
    cluster.store.update(&key, &entry.value, there.revision).unwrap();
}

#[test]
fn a_pod_gets_the_address_that_it_asks_for_again_from_its_sandbox_before() {
    let cluster = Cluster::new("successor", pool());
    let steward = cluster.steward("node1");
    let this = Wish { ips: vec!["10.244.0.77".parse().unwrap()], ..v4() };
    let first = steward.assign(&owner("first"), &this, PATIENCE).unwrap();
    eventually("the store knows", || steward.state().untold == 0);
    assert_eq!(steward.assign(&owner("second"), &this, PATIENCE).unwrap(), first);
    steward.release(&owner("first"), None).unwrap();
    eventually("the store knows the successor", || {
        cluster.held() == [("net.second".to_owned(), first[0].addr())].into()
    });
    cluster.assert_sound();
}

fn endpoint(container: &str, ip: &str) -> api::pods::Endpoint {
    api::pods::Endpoint {
        owner: owner(container),
        namespace: "shop".into(),
        pod: "web".into(),
        profiles: vec!["kns.shop".into()],
        addresses: vec![ip.parse().unwrap()],
        interface: "cali0".into(),
        mac: "0a:00:00:00:00:01".into(),
        ..api::pods::Endpoint::default()
    }
}

const ENDPOINT: &str = "/calico/resources/v3/projectcalico.org/workloadendpoints/shop/node1-k8s-web-eth0";

impl Cluster {
    /// The container and the addresses of the pod's endpoint, if the store has one.
    fn published(&self) -> Option<(String, String)> {
        let entry = self.store.0.store.lock().unwrap().get(ENDPOINT).unwrap()?;
        let object: serde_json::Value = serde_json::from_slice(&entry.value).unwrap();
        let text = |field: &str| object["spec"][field].to_string();
        Some((text("containerID"), text("ipNetworks")))
    }
}

fn said(container: &str, ip: &str) -> Option<(String, String)> {
    Some((format!("\"{container}\""), format!("[\"{ip}/32\"]")))
}

#[test]
fn an_endpoint_is_told_afterwards_and_withdrawn_by_its_own_container_only() {
    let cluster = Cluster::new("endpoint", pool());
    let steward = cluster.steward("node1");
    eventually("a stock", || steward.state().stock == 4);
    cluster.store.set(Mood::Away);
    steward.publish(&endpoint("c1", "10.244.0.1")).unwrap();
    cluster.store.set(Mood::Well);
    eventually("it is told", || cluster.published() == said("c1", "10.244.0.1"));
    // Another sandbox of the same pod comes before the first one is deleted.
    steward.publish(&endpoint("c2", "10.244.0.2")).unwrap();
    eventually("the later one counts", || cluster.published() == said("c2", "10.244.0.2"));
    steward.withdraw(&endpoint("c1", "10.244.0.1")).unwrap();
    let notes = notes::released(&api::pods::endpoints(&cluster.state("node1")));
    let settled = || std::fs::read_dir(&notes).unwrap().count() == 0;
    eventually("all is told", || settled() && steward.state().untold == 0);
    assert_eq!(cluster.published(), said("c2", "10.244.0.2"));
    cluster.store.set(Mood::Away);
    steward.withdraw(&endpoint("c2", "10.244.0.2")).unwrap();
    assert!(!settled());
    cluster.store.set(Mood::Well);
    eventually("it is gone", || cluster.published().is_none() && settled());
}

#[test]
fn endpoints_survive_their_agent_and_not_their_boot() {
    let cluster = Cluster::new("endpoint-boot", pool());
    let state = cluster.state("node1");
    let folder = notes::leases(&api::pods::endpoints(&state));
    std::fs::create_dir_all(&folder).unwrap();
    let write = |endpoint: &api::pods::Endpoint| {
        notes::write(&folder, &notes::file_name(&endpoint.owner), endpoint).unwrap();
    };
    // An agent that was killed has noted it, and nobody was told.
    write(&api::pods::Endpoint { boot: notes::boot().unwrap(), ..endpoint("c1", "10.244.0.1") });
    let gone =
        api::pods::Endpoint { pod: "old".into(), boot: "another".into(), ..endpoint("c0", "10.244.0.9") };
    write(&gone);
    let key = ENDPOINT.replace("web", "old");
    cluster.store.create(&key, br#"{"metadata":{},"spec":{"containerID":"c0"}}"#).unwrap();
    let _steward = cluster.steward("node1");
    eventually("the living is told", || cluster.published() == said("c1", "10.244.0.1"));
    eventually("the dead is withdrawn", || cluster.store.get(&key).unwrap().is_none());
}

#[test]
fn one_who_cannot_be_told_of_keeps_nobody_else_back() {
    let cluster = Cluster::new("endpoint-refused", pool());
    let steward = cluster.steward("node1");
    *cluster.store.0.forbidden.lock().unwrap() = Some("node1-k8s-odd-eth0");
    steward.publish(&api::pods::Endpoint { pod: "odd".into(), ..endpoint("c1", "10.244.0.1") }).unwrap();
    eventually("it is refused", || steward.state().trouble.is_some());
    steward.publish(&endpoint("c2", "10.244.0.2")).unwrap();
    eventually("the other is told", || cluster.published() == said("c2", "10.244.0.2"));
    assert_eq!(steward.state().untold, 1);
    *cluster.store.0.forbidden.lock().unwrap() = None;
    eventually("all is told", || steward.state().untold == 0 && steward.state().trouble.is_none());
    assert!(cluster.store.get(&ENDPOINT.replace("web", "odd")).unwrap().is_some());
}

#[test]
fn those_who_gave_up_take_nothing_when_the_store_is_back() {
    let cluster = Cluster::new("gave-up", pool());
    cluster.store.set(Mood::Away);
    let steward = cluster.steward("node1");
    for number in 0..20 {
        let waits = Duration::from_millis(1);
        assert!(steward.assign(&owner(&format!("c{number}")), &v4(), waits).is_err());
    }
    cluster.store.set(Mood::Well);
    eventually("a stock", || steward.state().stock == 4 && steward.state().trouble.is_none());
    let stock = ipam::blocks::Handle::of_stock("node1");
    assert_eq!(Allocator::new(&cluster.store, now).addresses_of(&stock).unwrap().len(), 4);
}

#[test]
fn a_del_of_what_has_no_lease_takes_nothing_from_the_containers_other_interface() {
    let cluster = Cluster::new("interfaces", pool());
    let steward = cluster.steward("node1");
    let given = steward.assign(&owner("c1"), &v4(), PATIENCE).unwrap()[0].addr();
    let held = [("net.c1".to_owned(), given)].into();
    eventually("the store knows", || cluster.held() == held);
    steward.release(&Owner { ifname: "net2".into(), ..owner("c1") }, None).unwrap();
    eventually("it is carried out", || settled(&steward, &cluster.state("node1")));
    assert_eq!(cluster.held(), held);
    cluster.assert_sound();
}

#[test]
fn pods_that_another_program_has_deleted_do_not_come_back_with_the_agent() {
    let cluster = Cluster::new("endpoint-deleted", pool());
    let state = cluster.state("node1");
    let endpoints = api::pods::endpoints(&state);
    // An agent that ended has noted two pods and told of both. Calico's plugin, which knows nothing of notes, has deleted one of them since.
    let note = |pod: &str, ip: &str, interface: &str, namespace_of_cable: u64| {
        let boot = notes::boot().unwrap();
        let name = notes::file_name(&owner(pod));
        let addresses = vec![format!("{ip}/28").parse().unwrap()];
        let lease = Lease { owner: owner(pod), addresses, boot: boot.clone(), ..Lease::default() };
        let (pod, interface) = (pod.to_owned(), interface.to_owned());
        let endpoint = api::pods::Endpoint {
            pod,
            interface,
            boot,
            namespace_of_cable,
            ..endpoint(&lease.owner.container, ip)
        };
        for folder in [notes::leases(&state), notes::leases(&endpoints)] {
            std::fs::create_dir_all(folder).unwrap();
        }
        notes::write(&notes::leases(&state), &name, &lease).unwrap();
        notes::write(&notes::leases(&endpoints), &name, &endpoint).unwrap();
    };
    let rules = Rules::load(&cluster.store).unwrap();
    let allocator = Allocator::new(&cluster.store, now);
    let give = |handle: &str| {
        let request = Request::new(ipam::blocks::Owner::host("node1"), handle);
        allocator.assign(&rules, &request).unwrap().addresses[0].addr()
    };
    let (kept, deleted, unseen) = (give("net.kept"), give("net.deleted"), give("net.unseen"));
    allocator.release_handle(&rules, "net.deleted").unwrap();
    let here = api::pods::network_namespace();
    note("kept", &kept.to_string(), "lo", here);
    note("deleted", &deleted.to_string(), "cali-is-gone", here);
    // Where that would be, nobody looks.
    note("unseen", &unseen.to_string(), "cali-elsewhere", here + 1);
    let steward = cluster.steward("node1");
    let gone = notes::released(&endpoints);
    let is_told = || settled(&steward, &state) && std::fs::read_dir(&gone).unwrap().count() == 0;
    eventually("all is told", || steward.state().stock == 4 && is_told());
    assert_eq!(cluster.held(), [("net.kept".to_owned(), kept), ("net.unseen".to_owned(), unseen)].into());
    assert!(cluster.store.get(&ENDPOINT.replace("web", "kept")).unwrap().is_some());
    assert!(cluster.store.get(&ENDPOINT.replace("web", "deleted")).unwrap().is_none());
    assert_eq!(steward.state().leases, 2);
    cluster.assert_sound();
}

#[test]
fn an_endpoint_that_another_has_made_for_the_pod_is_gone_on_with() {
    let cluster = Cluster::new("endpoint-reuse", pool());
    let theirs = ENDPOINT.replace("eth0", "net1");
    let value =
        br#"{"kind":"WorkloadEndpoint","metadata":{"uid":"u1"},"spec":{"containerID":"former","newer":1}}"#;
    cluster.store.create(&theirs, value).unwrap();
    let neighbour = ENDPOINT.replace("web-eth0", "web--1-eth0");
    cluster.store.create(&neighbour, value).unwrap();
    let steward = cluster.steward("node1");
    steward.publish(&endpoint("c1", "10.244.0.1")).unwrap();
    eventually("it is told", || steward.state().untold == 0);
    assert_eq!(cluster.published(), None, "no second one");
    let read = |key: &str| -> serde_json::Value {
        serde_json::from_slice(&cluster.store.get(key).unwrap().unwrap().value).unwrap()
    };
    let object = read(&theirs);
    assert_eq!(
        (object["spec"]["containerID"].as_str(), object["spec"]["newer"].as_u64()),
        (Some("c1"), Some(1))
    );
    assert_eq!(
        (object["spec"]["endpoint"].as_str(), object["metadata"]["uid"].as_str()),
        (Some("net1"), Some("u1"))
    );
    assert_eq!(read(&neighbour)["spec"]["containerID"], "former");
}

#[test]
fn a_profile_is_made_for_a_network_without_policies_and_never_changed() {
    let cluster = Cluster::new("profile", pool());
    let key = "/calico/resources/v3/projectcalico.org/profiles/net";
    let steward = cluster.steward("node1");
    let plain = api::pods::Endpoint { profiles: vec!["net".into()], ..endpoint("c1", "10.244.0.1") };
    steward.publish(&plain).unwrap();
    eventually("it is told", || steward.state().untold == 0);
    let made = cluster.store.get(key).unwrap().unwrap();
    steward.publish(&api::pods::Endpoint { mac: "0a:00:00:00:00:02".into(), ..plain }).unwrap();
    eventually("it is told", || steward.state().untold == 0);
    assert_eq!(cluster.store.get(key).unwrap().unwrap(), made);
}

#[test]
fn what_is_not_valid_any_more_is_withdrawn_with_its_addresses() {
    let cluster = Cluster::new("endpoint-gc", pool());
    let other = ENDPOINT.replace("web", "other");
    let is_there = |key: &str| cluster.store.get(key).unwrap().is_some();
    let valid = [("c2".to_owned(), "eth0".to_owned())];
    let later = api::pods::Endpoint { pod: "other".into(), ..endpoint("c2", "10.244.0.2") };
    let steward = cluster.steward("node1");
    steward.publish(&endpoint("c1", "10.244.0.1")).unwrap();
    steward.publish(&later).unwrap();
    eventually("both are told", || is_there(ENDPOINT) && is_there(&other));
    steward.collect("net", &valid).unwrap();
    eventually("one is withdrawn", || !is_there(ENDPOINT));
    assert!(is_there(&other));
    // The same where nobody owns the node's blocks: what is stale is known by its address.
    let ask = |question: &Question| {
        steward::direct::answer(&cluster.store, "node2", &cluster.state("node2"), question)
    };
    let key = ENDPOINT.replace("node1", "node2");
    let given = ask(&Question::Assign { owner: owner("c3"), wish: v4(), patience: 0 });
    assert!(matches!(given, Answer::Given { .. }), "{given:?}");
    let published = ask(&Question::Publish { endpoint: Box::new(endpoint("c3", "10.244.0.3")) });
    assert_eq!(published, Answer::Done);
    assert!(is_there(&key));
    assert_eq!(ask(&Question::Collect { network: "net".into(), valid: valid.to_vec() }), Answer::Done);
    assert!(!is_there(&key) && !cluster.held().iter().any(|(handle, _)| handle == "net.c3"));
}
