//! The worker of a node: a process in new namespaces that executes the requests of the harness.

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use podwire_kernel::{rt, Host, Netns};
use serde_json::Value;

use crate::chain::{address, namespace, Chain};
use crate::protocol::{Op, Pods, Request, Response, Setup, Verb};
use crate::{inspect, node, scenario};

/// The kernel removes namespaces asynchronously, a thousand in some seconds.
const TIMEOUT: Duration = Duration::from_secs(60);
const NAMESPACES: &str = "/run/netns";
/// The lease directory of `host-local`.
const LEASES: &str = "/var/lib/cni/networks";
/// The harness' own files on the node.
const OWN: &str = "/run/podwire-bench";
/// The socket of the node's block allocator.
const ALLOCATOR_SOCKET: &str = "/run/podwire/addresses.sock";

/// Executes requests from standard input until it is closed, then removes the node's files.
pub fn main() -> Result<()> {
    let mut lines = std::io::stdin().lock().lines();
    let setup: Setup = serde_json::from_str(&lines.next().context("no setup")??)?;
    drop(lines);
    let requests = requests(setup.state.clone());
    let worker = Worker { chain: Chain::new(&setup)?, results: Mutex::default() };
    prepare()?;
    let _allocator = setup.allocator.as_deref().map(serve).transpose()?;
    for request in requests {
        let response = worker
            .execute(request)
            .unwrap_or_else(|error| Response { faults: vec![format!("{error:#}")], ..Response::default() });
        let mut line = serde_json::to_vec(&response)?;
        line.push(b'\n');
        std::io::stdout().lock().write_all(&line)?;
    }
    Ok(())
}

/// Reads requests in another thread, so that the node is removed at once when the harness ends, however it ends.
fn requests(state: std::path::PathBuf) -> Receiver<Request> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            match serde_json::from_str(&line) {
                Ok(request) => drop(sender.send(request)),
                Err(error) => eprintln!("podwire-bench: not a request: {error}: {line}"),
            }
        }
        // A plugin that still runs may write a last file.
        for _ in 0..20 {
            if node::remove_state(&state).is_ok() || !state.exists() {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        std::process::exit(0);
    });
    receiver
}

/// Brings the node to the state of a booted machine: loopback up, forwarding on.
fn prepare() -> Result<()> {
    std::fs::create_dir_all(NAMESPACES)?;
    let mut host = Host::here()?;
    let lo = host.get_link("lo")?;
    host.route.request(rt::link::up(&lo))?;
    std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").context("enable forwarding")?;
    Ok(())
}

/// The block allocator of the node, with a warm pool. It ends with this process.
fn serve(podwire: &Path) -> Result<Child> {
    std::fs::create_dir_all(OWN)?;
    let store = format!("{OWN}/ipam.db");
    let pool = ["ipam", "pool", "bench", scenario::SUBNET, "--store", &store];
    let created = Command::new(podwire).args(pool).stdout(Stdio::null()).status()?;
    ensure!(created.success(), "podwire ipam pool: {created}");
    let allocator = Command::new("setpriv")
        .args(["--pdeathsig", "KILL"])
        .arg(podwire)
        .args(["ipam", "serve", "--node", "bench", "--store", &store, "--state"])
        .arg(format!("{OWN}/addresses"))
        .env("RUST_LOG", "warn")
        .spawn()
        .context("start setpriv")?;
    let end = Instant::now() + TIMEOUT;
    while UnixStream::connect(ALLOCATOR_SOCKET).is_err() {
        ensure!(Instant::now() < end, "nothing listens at {ALLOCATOR_SOCKET} after {TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(allocator)
}

struct Worker {
    chain: Chain,
    /// The result of each attached pod's ADD.
    results: Mutex<HashMap<u32, Value>>,
}

impl Worker {
    fn execute(&self, request: Request) -> Result<Response> {
        let mut response = Response::default();
        match request {
            Request::Version { plugin } => {
                let done = self.chain.version_of(&plugin)?;
                response.seconds = done.micros / 1e6;
                response.ops = vec![Op { pod: 0, micros: done.micros, address: None, fault: done.fault }];
            }
            Request::CreateNamespaces { pods } => {
                for pod in pods {
                    Netns::create(namespace(pod))?;
                }
            }
            Request::RemoveNamespaces { pods } => remove_namespaces(pods)?,
            Request::Run { verb, pods, at_once } => response = self.run(verb, pods, at_once),
            Request::CheckAttached { pod } => {
                let result = self.results().get(&pod).cloned().context("the pod is not attached")?;
                inspect::check_attached(pod, &result).with_context(|| format!("pod {pod}"))?;
            }
            Request::CheckDetached { pod } => {
                inspect::check_detached(pod).with_context(|| format!("pod {pod}"))?;
            }
            Request::WriteLeases { leases } => write_leases(self.chain.network(), leases)?,
            Request::Count => response.counts = Some(inspect::count()?),
        }
        Ok(response)
    }

    /// Threads take pods from a common queue.
    fn run(&self, verb: Verb, mut pods: Pods, at_once: usize) -> Response {
        if at_once <= 1 {
            let start = Instant::now();
            let ops: Vec<Op> = pods.map(|pod| self.one(verb, pod)).collect();
            return Response { ops, seconds: start.elapsed().as_secs_f64(), ..Response::default() };
        }
        let (queue, ops) = (Mutex::new(&mut pods), Mutex::new(Vec::new()));
        let start = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..at_once {
                scope.spawn(|| loop {
                    let Some(pod) = lock(&queue).next() else { break };
                    let op = self.one(verb, pod);
                    lock(&ops).push(op);
                });
            }
        });
        let seconds = start.elapsed().as_secs_f64();
        let ops = std::mem::take(&mut *lock(&ops));
        Response { ops, seconds, ..Response::default() }
    }

    fn one(&self, verb: Verb, pod: u32) -> Op {
        let previous = match verb {
            Verb::Add => None,
            Verb::Del => self.results().remove(&pod),
        };
        let mut op = Op { pod, ..Op::default() };
        match self.chain.run(verb, pod, previous.as_ref()) {
            Err(error) => op.fault = Some(format!("{error:#}")),
            Ok(done) => {
                (op.micros, op.fault) = (done.micros, done.fault);
                if let (Verb::Add, None) = (verb, &op.fault) {
                    match done.result.as_ref().and_then(address) {
                        Some((address, _)) => op.address = Some(address),
                        None => op.fault = Some(format!("a result without an address: {:?}", done.result)),
                    }
                    self.results().extend(done.result.map(|result| (pod, result)));
                }
            }
        }
        op.fault = op.fault.map(|fault| format!("{} pod {pod}: {fault}", verb.text()));
        op
    }

    fn results(&self) -> std::sync::MutexGuard<'_, HashMap<u32, Value>> {
        lock(&self.results)
    }
}

/// A panic ends the process, so no lock is ever poisoned.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Removes namespaces, and waits until the kernel has deleted the veth pairs of pods that were still attached.
fn remove_namespaces(pods: Pods) -> Result<()> {
    for pod in pods {
        Netns::remove(&namespace(pod))?;
    }
    let end = Instant::now() + TIMEOUT;
    let mut host = Host::here()?;
    let veths = |host: &mut Host, rest: usize| -> Result<bool> {
        Ok(rt::link::list(&mut host.route)?.iter().filter(|link| link.kind == "veth").count() > rest)
    };
    let attached = std::fs::read_dir(NAMESPACES)?.count();
    while veths(&mut host, attached)? && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Writes leases as `host-local` does: a file named after the address, with the container's id and interface, and the
/// last allocated address, after which the next search begins.
fn write_leases(network: &str, leases: u32) -> Result<()> {
    let folder = Path::new(LEASES).join(network);
    std::fs::create_dir_all(&folder)?;
    let write = |name: &str, text: &str| -> Result<()> {
        let mut options = std::fs::File::options();
        let mut file = options.write(true).create_new(true).mode(0o600).open(folder.join(name))?;
        Ok(file.write_all(text.as_bytes())?)
    };
    let first = u32::from(crate::scenario::FIRST_ADDRESS);
    for lease in 0..leases {
        let ip = std::net::Ipv4Addr::from(first + lease).to_string();
        write(&ip, &format!("5eed{lease:060x}\r\neth0"))?;
        if lease + 1 == leases {
            write("last_reserved_ip.0", &ip)?;
        }
    }
    Ok(())
}
