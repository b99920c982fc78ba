//! A real etcd in trouble: away, slow, refusing, full. Pods come as long as there is stock, then they are told to come again, with etcd's own
//! words; they go at all times; and when the trouble is over, etcd and the leases say the same.

mod wire;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use etcd_client::{AlarmAction, AlarmOptions, AlarmType, Client, CompactionOptions, ConnectOptions};
use podwire_agent_ipc::blocks::Wish;
use podwire_agent_ipc::{notes, Owner};
use podwire_block_ipam::store::Store;
use podwire_block_ipam::timestamp::Timestamp;
use podwire_block_ipam::{Allocator, Pool, Rules};
use podwire_steward::{Settings, Steward};
use podwire_store_etcd::EtcdStore;
use podwire_test_servers::EtcdServer as Server;
use wire::Wire;

const PATIENCE: Duration = Duration::from_secs(60);
const STOCK: usize = 4;

/// An etcd, and a node that gets its addresses there.
struct Site {
    server: Server,
    wire: Wire,
    folder: PathBuf,
    steward: Steward,
}

fn connect(server: &Server) -> EtcdStore {
    EtcdStore::connect(&[server.url()], None).unwrap()
}

fn now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    Timestamp::from_unix_nanos(since.as_nanos() as u64)
}

impl Site {
    fn new(name: &str, arguments: &[&str]) -> Site {
        let server = Server::start_with_arguments(arguments);
        let pool = Pool::new("pods", "10.244.0.0/24".parse().unwrap()).with_block_size(28);
        Allocator::new(&connect(&server), now).add_pool(&pool).unwrap();
        let folder = std::env::temp_dir().join(format!("podwire-trouble-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let wire = Wire::to(&server.url());
        let url = wire.url.clone();
        let opener = move || {
            let store = EtcdStore::connect(std::slice::from_ref(&url), None)?;
            Ok(Box::new(store) as Box<dyn Store>)
        };
        let settings = Settings { node: "node1".into(), stock: STOCK };
        let steward = Steward::start(settings, &folder, Box::new(opener)).unwrap();
        Site { server, wire, folder, steward }
    }

    fn assign(&self, container: &str, patience: Duration) -> Result<IpAddr, podwire_steward::Error> {
        let wish = Wish { v4: Some(Vec::new()), ..Wish::default() };
        self.steward.assign(&owner(container), &wish, patience).map(|given| given[0].addr())
    }

    /// What pods have, as etcd knows it.
    fn held(&self) -> BTreeSet<(String, IpAddr)> {
        let mut held = BTreeSet::new();
        for block in Allocator::new(&connect(&self.server), now).blocks().unwrap().into_iter().flatten() {
            held.extend(
                block.allocations().map(|one| (one.attribute.handle().unwrap_or("").to_owned(), one.ip)),
            );
        }
        held.retain(|(handle, _)| !handle.starts_with("podwire-stock-"));
        held
    }

    fn is_settled(&self) -> bool {
        let notes = std::fs::read_dir(notes::released(&self.folder)).unwrap().count();
        self.steward.state().untold == 0 && notes == 0
    }

    /// Trouble comes, pods come and go, trouble goes.
    fn endure(&mut self, begin: fn(&mut Server, &Wire), words: &str, end: fn(&mut Server, &Wire)) {
        let mut living = BTreeSet::from([("net.stays".to_owned(), self.assign("stays", PATIENCE).unwrap())]);
        self.assign("goes", PATIENCE).unwrap();
        eventually("all is told and stocked", || {
            self.held().len() == 2 && self.is_settled() && self.steward.state().stock > STOCK / 2
        });
        begin(&mut self.server, &self.wire);
        self.steward.release(&owner("goes"), None).expect("a pod goes at all times");
        let pods = (0..).map(|number| format!("c{number}"));
        let warm =
            pods.map_while(|pod| self.assign(&pod, Duration::ZERO).ok().map(|ip| (format!("net.{pod}"), ip)));
        living.extend(warm);
        assert!(living.len() > STOCK / 2 + 1, "what is in stock is given: {living:?}");
        eventually("the reason is told", || {
            let error = self.assign("late", Duration::from_millis(500)).expect_err("nothing is in stock");
            assert_eq!(error.code(), 11, "{error}");
            error.to_string().contains(words)
        });
        self.steward.release(&owner("c0"), None).expect("a pod goes at all times");
        living.retain(|(handle, _)| handle != "net.c0");
        end(&mut self.server, &self.wire);
        living.insert(("net.late".into(), self.assign("late", PATIENCE).expect("the trouble is over")));
        eventually("etcd and the leases say the same", || self.is_settled() && self.held() == living);
        let (store, known) = (connect(&self.server), Rules::load(&connect(&self.server)).unwrap());
        eventually("blocks, handles and claims agree", || {
            Allocator::new(&store, now).check(&known).unwrap().problems.is_empty()
        });
        self.steward.is_ready().unwrap();
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn owner(container: &str) -> Owner {
    Owner { network: "net".into(), container: container.into(), ifname: "eth0".into() }
}

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What an administrator does to etcd.
fn administer<T>(
    server: &Server,
    user: Option<(&str, &str)>,
    act: impl AsyncFnOnce(Client) -> Result<T, etcd_client::Error>,
) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let options = user.map(|(name, password)| ConnectOptions::new().with_user(name, password));
    runtime.block_on(async { act(Client::connect([server.url()], options).await.unwrap()).await.unwrap() })
}

#[test]
fn an_etcd_that_is_away_stops_no_pod_for_good() {
    let stop = |server: &mut Server, _: &Wire| server.stop();
    let start = |server: &mut Server, _: &Wire| server.restart();
    Site::new("away", &[]).endure(stop, "the store http://127.0.0.1:", start);
}

#[test]
fn an_etcd_that_takes_two_seconds_for_an_answer_stops_no_pod_for_good() {
    let slow = |_: &mut Server, wire: &Wire| wire.slow_down(Duration::from_secs(2));
    let fast = |_: &mut Server, wire: &Wire| wire.slow_down(Duration::ZERO);
    Site::new("slow", &[]).endure(slow, "it takes longer than this call may", fast);
}

#[test]
fn an_etcd_that_refuses_stops_no_pod_for_good() {
    let refuse = |server: &mut Server, _: &Wire| {
        administer(server, None, async |mut client| {
            client.user_add("root", "secret", None).await?;
            client.role_add("root").await?;
            client.user_grant_role("root", "root").await?;
            client.auth_enable().await
        });
    };
    let allow = |server: &mut Server, _: &Wire| {
        administer(server, Some(("root", "secret")), async |mut client| client.auth_disable().await);
    };
    Site::new("refusing", &[]).endure(refuse, "user name is empty", allow);
}

#[test]
fn an_etcd_that_is_full_stops_no_pod_for_good() {
    let fill = |server: &mut Server, _: &Wire| {
        let (store, filler) = (connect(server), vec![7; 256 << 10]);
        let mut put = (0..1000).map(|number| store.create(&format!("/filler/{number}"), &filler));
        let error = put.find_map(Result::err).expect("it has a limit");
        assert!(error.to_string().contains("space exceeded"), "{error}");
    };
    let clear = |server: &mut Server, _: &Wire| {
        let store = connect(server);
        for entry in store.list("/filler/").unwrap() {
            store.delete(&entry.key, entry.revision).unwrap();
        }
        administer(server, None, async |mut client| {
            let revision = client.get("/", None).await?.header().unwrap().revision();
            client.compact(revision, Some(CompactionOptions::new().with_physical())).await?;
            client.defragment().await?;
            for alarm in client.alarm(AlarmAction::Get, AlarmType::None, None).await?.alarms() {
                let mut member = AlarmOptions::new();
                member.with_member(alarm.member_id());
                client.alarm(AlarmAction::Deactivate, AlarmType::Nospace, Some(member)).await?;
            }
            Ok(())
        });
    };
    Site::new("full", &["--quota-backend-bytes", "8388608"]).endure(fill, "space exceeded", clear);
}
