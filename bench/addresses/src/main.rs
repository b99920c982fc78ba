//! podwire-bench-addresses: the cost of block IPAM.
//!
//! On SQLite and on a real etcd it measures how many addresses one node, and several nodes at once, allocate and release
//! per second. Each allocation is a request to the store, as on a node without a warm pool. It also measures the
//! requests with which one more node claims its first block among a thousand nodes with full blocks.

mod counting;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{anyhow, ensure, Result};
use clap::Parser;
use counting::Counting;
use outcome::Targets;
use podwire_block_ipam::store::Store;
use podwire_block_ipam::timestamp::Timestamp;
use podwire_block_ipam::{AffinityOwner, Allocator, Pool, Request, Rules};
use podwire_store_etcd::EtcdStore;
use podwire_store_sqlite::SqliteStore;
use podwire_test_servers::EtcdServer;

/// The targets for a claim: requests, and bytes of keys and values for each existing node.
const REQUESTS: usize = 10;
const BYTES: usize = 64;
/// The addresses of a block. All are in use.
const BLOCK: usize = 64;
/// The nodes that allocate at the same time.
const NODES: usize = 4;

/// Measures how fast nodes allocate and release addresses of blocks.
#[derive(Debug, Parser)]
#[command(name = "podwire-bench-addresses", version)]
struct Arguments {
    /// Nodes with full blocks, when one more node claims a block
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1000)]
    nodes: usize,
    /// Few nodes and few pods: a smoke test, no measurement
    #[arg(long)]
    quick: bool,
    /// Exit with status 1 if a target is missed
    #[arg(long)]
    enforce: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    outcome::run("podwire-bench-addresses", arguments.enforce, || bench(&arguments))
}

/// Opens another client of a store.
type Open<'a> = &'a (dyn Fn() -> Result<Box<dyn Store>> + Sync);

fn bench(arguments: &Arguments) -> Result<Targets> {
    let (nodes, pods) = if arguments.quick { (50, 50) } else { (arguments.nodes, 1000) };
    println!("\naddresses: pools and blocks in a store");
    println!(
        "  {:10}{:>18}{:>18}{:>8}{:>10}{:>12}{:>10}",
        "store", "1 node pods/s", "4 nodes pods/s", "nodes", "requests", "bytes", "claim ms"
    );
    let mut targets = Targets::default();
    let file = File::new();
    let sqlite = || Ok(Box::new(SqliteStore::open(&file.0)?) as Box<dyn Store>);
    measure("SQLite", &sqlite, (nodes, pods), &mut targets)?;
    let server = EtcdServer::start();
    let etcd = || Ok(Box::new(EtcdStore::connect(&[server.url()], None)?) as Box<dyn Store>);
    measure("etcd", &etcd, (nodes, pods), &mut targets)?;
    Ok(targets)
}

fn measure(name: &str, open: Open<'_>, (nodes, pods): (usize, usize), targets: &mut Targets) -> Result<()> {
    let store = open()?;
    let allocator = Allocator::new(&*store, now);
    allocator.add_pool(&Pool::new("pods", "10.0.0.0/12".parse()?))?;
    let rules = Rules::load(&*store)?;
    let one = throughput(open, &rules, 1, pods)?;
    let several = throughput(open, &rules, NODES, pods)?;
    for node in 0..nodes {
        let mut request = Request::new(AffinityOwner::host(format!("full{node}")), format!("net.full{node}"));
        request.count = BLOCK;
        ensure!(allocator.assign(&rules, &request)?.addresses.len() == BLOCK, "a block is not full");
    }
    let counting = Counting::new(&*store);
    let start = Instant::now();
    let assigned = Allocator::new(&counting, now)
        .assign(&rules, &Request::new(AffinityOwner::host("new"), "net.new"))?;
    let took = start.elapsed().as_secs_f64() * 1e3;
    ensure!(assigned.addresses.len() == 1, "the new node has no address");
    let (requests, bytes) = (counting.requests.get(), counting.bytes.get());
    println!("  {name:10}{one:>18.0}{several:>18.0}{nodes:>8}{requests:>10}{bytes:>12}{took:>10.1}");
    // The new node also reads its own records.
    let (max, own) = (BYTES * (nodes + NODES + 1), 4096);
    let text = format!("{name}: a claim among {nodes} nodes makes at most {REQUESTS} requests: {requests}");
    targets.report(requests <= REQUESTS, &text);
    let text = format!("{name}: and reads at most {BYTES} bytes for each of them: {bytes} bytes in total");
    targets.report(bytes <= max + own, &text);
    let problems = allocator.check(&rules)?.problems;
    ensure!(problems.is_empty(), "the records in the store are inconsistent: {}", problems[0]);
    Ok(())
}

/// Pods that get and release an address per second, on this number of nodes at once.
fn throughput(open: Open<'_>, rules: &Rules, nodes: usize, pods: usize) -> Result<f64> {
    let start = Instant::now();
    std::thread::scope(|scope| {
        let node = |node: usize| {
            move || -> Result<()> {
                let store = open()?;
                let allocator = Allocator::new(&*store, now);
                for pod in 0..pods {
                    let handle = format!("net.{node}-{pod}");
                    let request = Request::new(AffinityOwner::host(format!("node{node}")), handle.clone());
                    ensure!(
                        allocator.assign(rules, &request)?.addresses.len() == 1,
                        "{handle} has no address"
                    );
                    ensure!(allocator.release_handle(rules, &handle)?.len() == 1, "{handle} had no address");
                }
                Ok(())
            }
        };
        let all: Vec<_> = (0..nodes).map(|number| scope.spawn(node(number))).collect();
        all.into_iter()
            .try_for_each(|node| node.join().map_err(|_| anyhow!("the thread of a node panicked"))?)
    })?;
    Ok((nodes * pods) as f64 / start.elapsed().as_secs_f64())
}

/// The file of a SQLite database. It is removed when this is dropped.
struct File(PathBuf);

impl File {
    fn new() -> File {
        File(std::env::temp_dir().join(format!("podwire-bench-addresses-{}.db", std::process::id())))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        for end in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{end}", self.0.display()));
        }
    }
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_unix_nanos(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}
