//! The block allocator with a real etcd that is stopped, slow, rejecting or full. ADD succeeds while the warm pool
//! lasts, then fails with "try again" and etcd's error; DEL always succeeds; and when etcd works again, it agrees with
//! the leases.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use etcd_client::{AlarmAction, AlarmOptions, AlarmType, Client, CompactionOptions, ConnectOptions};
use podwire_agent::calico::allocator::{BlockAllocator, Settings};
use podwire_agent_ipc::addresses::AddressRequest;
use podwire_agent_ipc::{pending, Owner};
use podwire_block_ipam::store::Store;
use podwire_block_ipam::timestamp::Timestamp;
use podwire_block_ipam::{Allocator, Ownership, Pool, Rules};
use podwire_store_etcd::EtcdStore;
use podwire_test_servers::{EtcdServer, TcpProxy};

const TIMEOUT: Duration = Duration::from_secs(60);
const WARM: usize = 4;

/// An etcd, and a node with an allocator on it.
struct Site {
    server: EtcdServer,
    proxy: TcpProxy,
    dir: PathBuf,
    agent: BlockAllocator,
}

fn connect(server: &EtcdServer) -> EtcdStore {
    EtcdStore::connect(&[server.url()], None).unwrap()
}

fn now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    Timestamp::from_unix_nanos(since.as_nanos() as u64)
}

impl Site {
    fn new(name: &str, arguments: &[&str]) -> Site {
        let server = EtcdServer::start_with_arguments(arguments);
        let pool = Pool::new("pods", "10.244.0.0/24".parse().unwrap()).with_block_size(28);
        Allocator::new(&connect(&server), now).add_pool(&pool).unwrap();
        let dir = std::env::temp_dir().join(format!("podwire-trouble-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let proxy = TcpProxy::start(&server.url());
        let url = proxy.url.clone();
        let opener = move || {
            let store = EtcdStore::connect(std::slice::from_ref(&url), None)?;
            Ok(Box::new(store) as Box<dyn Store>)
        };
        let settings = Settings { node: "node1".into(), warm_addresses: WARM, claim: Ownership::DURATION };
        let agent = BlockAllocator::start(settings, &dir, Box::new(opener)).unwrap();
        Site { server, proxy, dir, agent }
    }

    fn assign(
        &self,
        container: &str,
        timeout: Duration,
    ) -> Result<IpAddr, podwire_agent::calico::allocator::Error> {
        let wanted = AddressRequest { ipv4_pools: Some(Vec::new()), ..AddressRequest::default() };
        self.agent.assign(&owner(container), &wanted, timeout).map(|given| given[0].addr())
    }

    /// The handles of pods and their addresses in etcd.
    fn held(&self) -> BTreeSet<(String, IpAddr)> {
        let mut held = BTreeSet::new();
        for block in Allocator::new(&connect(&self.server), now).blocks().unwrap().into_iter().flatten() {
            held.extend(
                block.allocations().map(|one| (one.attribute.handle().unwrap_or("").to_owned(), one.ip)),
            );
        }
        held.retain(|(handle, _)| !handle.starts_with("podwire-warm-"));
        held
    }

    fn is_settled(&self) -> bool {
        let notes = std::fs::read_dir(pending::released_dir(&self.dir)).unwrap().count();
        self.agent.status().unsynced == 0 && notes == 0
    }

    /// Breaks etcd, adds and deletes pods, repairs etcd.
    fn survives(
        &mut self,
        begin: fn(&mut EtcdServer, &TcpProxy),
        words: &str,
        end: fn(&mut EtcdServer, &TcpProxy),
    ) {
        let mut assigned = BTreeSet::from([("net.stays".to_owned(), self.assign("stays", TIMEOUT).unwrap())]);
        self.assign("goes", TIMEOUT).unwrap();
        eventually("the store is synced and the warm pool filled", || {
            self.held().len() == 2 && self.is_settled() && self.agent.status().warm_pool > WARM / 2
        });
        begin(&mut self.server, &self.proxy);
        self.agent.release(&owner("goes"), None).expect("DEL always succeeds");
        let pods = (0..).map(|number| format!("c{number}"));
        let warm =
            pods.map_while(|pod| self.assign(&pod, Duration::ZERO).ok().map(|ip| (format!("net.{pod}"), ip)));
        assigned.extend(warm);
        assert!(assigned.len() > WARM / 2 + 1, "warm addresses are assigned: {assigned:?}");
        eventually("the error has the reason", || {
            let error = self.assign("late", Duration::from_millis(500)).expect_err("the warm pool is empty");
            assert_eq!(error.code(), 11, "{error}");
            error.to_string().contains(words)
        });
        self.agent.release(&owner("c0"), None).expect("DEL always succeeds");
        assigned.retain(|(handle, _)| handle != "net.c0");
        end(&mut self.server, &self.proxy);
        assigned.insert(("net.late".into(), self.assign("late", TIMEOUT).expect("etcd works again")));
        eventually("etcd and the leases agree", || self.is_settled() && self.held() == assigned);
        let (store, known) = (connect(&self.server), Rules::load(&connect(&self.server)).unwrap());
        eventually("blocks, handles and affinities agree", || {
            Allocator::new(&store, now).check(&known).unwrap().problems.is_empty()
        });
        self.agent.check_ready().unwrap();
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn owner(container: &str) -> Owner {
    Owner { network: "net".into(), container: container.into(), ifname: "eth0".into() }
}

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < until, "{what}: not within {TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs an administrator's command on etcd.
fn administer<T>(
    server: &EtcdServer,
    user: Option<(&str, &str)>,
    act: impl AsyncFnOnce(Client) -> Result<T, etcd_client::Error>,
) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let options = user.map(|(name, password)| ConnectOptions::new().with_user(name, password));
    runtime.block_on(async { act(Client::connect([server.url()], options).await.unwrap()).await.unwrap() })
}

#[test]
fn pods_survive_a_stopped_etcd() {
    let stop = |server: &mut EtcdServer, _: &TcpProxy| server.stop();
    let start = |server: &mut EtcdServer, _: &TcpProxy| server.restart();
    Site::new("away", &[]).survives(stop, "the store http://127.0.0.1:", start);
}

#[test]
fn pods_survive_an_etcd_that_answers_after_two_seconds() {
    let slow = |_: &mut EtcdServer, proxy: &TcpProxy| proxy.set_delay(Duration::from_secs(2));
    let fast = |_: &mut EtcdServer, proxy: &TcpProxy| proxy.set_delay(Duration::ZERO);
    Site::new("slow", &[]).survives(slow, "the store did not assign one within the timeout", fast);
}

#[test]
fn pods_survive_an_etcd_that_rejects_the_agent() {
    let refuse = |server: &mut EtcdServer, _: &TcpProxy| {
        administer(server, None, async |mut client| {
            client.user_add("root", "secret", None).await?;
            client.role_add("root").await?;
            client.user_grant_role("root", "root").await?;
            client.auth_enable().await
        });
    };
    let allow = |server: &mut EtcdServer, _: &TcpProxy| {
        administer(server, Some(("root", "secret")), async |mut client| client.auth_disable().await);
    };
    Site::new("refusing", &[]).survives(refuse, "user name is empty", allow);
}

#[test]
fn pods_survive_a_full_etcd() {
    let fill = |server: &mut EtcdServer, _: &TcpProxy| {
        let (store, filler) = (connect(server), vec![7; 256 << 10]);
        let mut put = (0..1000).map(|number| store.create(&format!("/filler/{number}"), &filler));
        let error = put.find_map(Result::err).expect("etcd has a quota");
        assert!(error.to_string().contains("space exceeded"), "{error}");
    };
    let clear = |server: &mut EtcdServer, _: &TcpProxy| {
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
    Site::new("full", &["--quota-backend-bytes", "8388608"]).survives(fill, "space exceeded", clear);
}
