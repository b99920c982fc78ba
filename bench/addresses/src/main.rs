//! podwire-bench-addresses: what does block IPAM cost?
//!
//! On SQLite and on a real etcd it measures how many addresses are allocated and released in a second, by one node and
//! by several at once; each allocation is a request to the store, as on a node without a warm pool. It also measures
//! what one more node requests from the store to claim its first block among a thousand nodes with full blocks.

mod counting;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{anyhow, ensure, Result};
use clap::Parser;
use counting::Counting;
use outcome::Promises;
use podwire_block_ipam::store::Store;
use podwire_block_ipam::timestamp::Timestamp;
use podwire_block_ipam::{AffinityOwner, Allocator, Pool, Request, Rules};
use podwire_store_etcd::EtcdStore;
use podwire_store_sqlite::SqliteStore;
use podwire_test_servers::EtcdServer;

/// The promises about a claim: requests, and bytes of keys and values for each node that is there.
const REQUESTS: usize = 10;
const BYTES: usize = 64;
/// So many addresses a block has, all in use.
const BLOCK: usize = 64;
/// So many nodes at once.
const NODES: usize = 4;

/// Measures how fast addresses of blocks are given and taken back.
#[derive(Debug, Parser)]
#[command(name = "podwire-bench-addresses", version)]
struct Arguments {
    /// Nodes with full blocks, among which one more claims
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1000)]
    nodes: usize,
    /// Few nodes and few pods: shows that all works, proves no number
    #[arg(long)]
    quick: bool,
    /// Exit with status 1 if a promise is not kept
    #[arg(long)]
    enforce: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    outcome::run("podwire-bench-addresses", arguments.enforce, || bench(&arguments))
}

/// Opens a store as one more client of it.
type Open<'a> = &'a (dyn Fn() -> Result<Box<dyn Store>> + Sync);

fn bench(arguments: &Arguments) -> Result<Promises> {
    let (nodes, pods) = if arguments.quick { (50, 50) } else { (arguments.nodes, 1000) };
    println!("\naddresses: pools and blocks in a store");
    println!(
        "  {:10}{:>18}{:>18}{:>8}{:>10}{:>12}{:>10}",
        "store", "1 node pods/s", "4 nodes pods/s", "nodes", "requests", "bytes", "claim ms"
    );
    let mut promises = Promises::default();
    let file = File::new();
    let sqlite = || Ok(Box::new(SqliteStore::open(&file.0)?) as Box<dyn Store>);
    measure("SQLite", &sqlite, (nodes, pods), &mut promises)?;
    let server = EtcdServer::start();
    let etcd = || Ok(Box::new(EtcdStore::connect(&[server.url()], None)?) as Box<dyn Store>);
    measure("etcd", &etcd, (nodes, pods), &mut promises)?;
    Ok(promises)
}

fn measure(name: &str, open: Open<'_>, (nodes, pods): (usize, usize), promises: &mut Promises) -> Result<()> {
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
    let begun = Instant::now();
    let given = Allocator::new(&counting, now)
        .assign(&rules, &Request::new(AffinityOwner::host("new"), "net.new"))?;
    let took = begun.elapsed().as_secs_f64() * 1e3;
    ensure!(given.addresses.len() == 1, "the newcomer has no address");
    let (requests, bytes) = (counting.requests.get(), counting.bytes.get());
    println!("  {name:10}{one:>18.0}{several:>18.0}{nodes:>8}{requests:>10}{bytes:>12}{took:>10.1}");
    // Its own records are read too.
    let (most, own) = (BYTES * (nodes + NODES + 1), 4096);
    let text = format!("{name}: a claim among {nodes} nodes makes at most {REQUESTS} requests: {requests}");
    promises.judge(requests <= REQUESTS, &text);
    let text = format!("{name}: and reads at most {BYTES} bytes for each of them: {bytes} bytes in all");
    promises.judge(bytes <= most + own, &text);
    let problems = allocator.check(&rules)?.problems;
    ensure!(problems.is_empty(), "records do not fit together: {}", problems[0]);
    Ok(())
}

/// How many pods come and go in a second, on so many nodes at once.
fn throughput(open: Open<'_>, rules: &Rules, nodes: usize, pods: usize) -> Result<f64> {
    let begun = Instant::now();
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
        all.into_iter().try_for_each(|node| node.join().map_err(|_| anyhow!("a node died"))?)
    })?;
    Ok((nodes * pods) as f64 / begun.elapsed().as_secs_f64())
}

/// A file for SQLite, which goes with this.
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
