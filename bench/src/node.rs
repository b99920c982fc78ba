//! The harness' side of a node: starts the worker in new namespaces and sends it requests.
//!
//! A node is a network namespace, and a mount namespace with a private /run in memory and a private /var/lib/cni on the
//! disk. All of it disappears when the worker ends.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use anyhow::{bail, Context, Result};
use serde_json::Value;

use crate::order::{Answer, Order, Plan, Way};

/// The slowest order is to attach a thousand pods with slow plugins.
const TIMEOUT: Duration = Duration::from_secs(1800);

/// Runs in the new namespaces: $1 is the node's folder on the disk, $2 our own program. A machine that never
/// had /var/lib/cni gets none: there all of /var/lib is the node's own.
const MOUNTS: &str = r#"
set -e
mount -t tmpfs -o mode=755 tmpfs /run
mount -t sysfs sysfs /sys
if [ -d /var/lib/cni ]; then mount --bind "$1" /var/lib/cni
else mount --bind "$1" /var/lib; mkdir -p /var/lib/cni; fi
cd /
exec "$2" node
"#;

/// A node with its worker.
#[derive(Debug)]
pub struct Node {
    worker: Child,
    orders: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Node {
    /// Starts a node with its files in a new directory in `disk`; `allocator` is the program that allocates from its
    /// blocks, if any.
    pub fn start(
        way: Way,
        network: Value,
        allocator: Option<PathBuf>,
        disk: &Path,
        realtime: bool,
    ) -> Result<Node> {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let home = disk.join(format!("podwire-bench.{}", std::process::id()));
        let state = home.join(number.to_string());
        std::fs::create_dir_all(&home).with_context(|| format!("make {}", home.display()))?;
        spread(&home);
        std::fs::create_dir_all(&state).with_context(|| format!("make {}", state.display()))?;
        let way = way.copied_to(&state.join("programs")).inspect_err(|_| drop(forget(&state)))?;
        let own = std::env::current_exe()?;
        let mut argv: Vec<&str> = Vec::new();
        if realtime {
            argv.extend(["chrt", "-r", "1"]);
        }
        argv.extend(["unshare", "--mount", "--net", "--propagation", "private", "sh", "-c", MOUNTS, "node"]);
        let started = Command::new(argv[0])
            .args(&argv[1..])
            .arg(&state)
            .arg(own)
            // A key pressed to end the harness must not end the worker before it has cleaned up.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut worker = match started {
            Ok(worker) => worker,
            Err(error) => {
                forget(&state)?;
                return Err(error).with_context(|| format!("start {}", argv[0]));
            }
        };
        let (sender, answers) = mpsc::channel();
        let output = worker.stdout.take().context("the worker has no output")?;
        std::thread::spawn(move || {
            BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let orders = worker.stdin.take();
        let mut node = Node { worker, orders, answers };
        let plan = Plan { way, network, state: state.clone(), allocator };
        let asked = node.send(&plan).and_then(|()| node.ask(Order::Count));
        // A worker that never came to life cannot have cleaned up.
        asked.inspect_err(|_| drop(forget(&state))).context("make a node")?;
        Ok(node)
    }

    /// Gives an order and waits for the answer. An order that failed as a whole is an error.
    pub fn ask(&mut self, order: Order) -> Result<Answer> {
        self.send(&order)?;
        let Ok(line) = self.answers.recv_timeout(TIMEOUT) else { bail!("no answer from the node's worker") };
        let answer: Answer = serde_json::from_str(&line)?;
        match answer.faults.first() {
            Some(fault) => bail!("{fault}"),
            None => Ok(answer),
        }
    }

    fn send(&mut self, what: &impl serde::Serialize) -> Result<()> {
        let mut line = serde_json::to_vec(what)?;
        line.push(b'\n');
        let orders = self.orders.as_mut().context("the node has ended")?;
        orders.write_all(&line).context("talk to the node's worker")
    }
}

/// Lets ext4 put each of the folders in `home` elsewhere on the disk. It is slow to make a file for minutes after ten
/// thousand others were deleted nearby, and what one scenario deletes is not to be the next one's cost. Other file
/// systems have no such flag.
fn spread(home: &Path) {
    let _ = Command::new("chattr").arg("+T").arg(home).stderr(Stdio::null()).status();
}

/// Removes a node's folder, and the one around it with the last of them.
pub fn forget(state: &Path) -> std::io::Result<()> {
    std::fs::remove_dir_all(state)?;
    if let Some(home) = state.parent() {
        let _ = std::fs::remove_dir(home);
    }
    Ok(())
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.orders.take());
        // It cleans up and ends when its input does.
        let _ = self.worker.wait();
    }
}
