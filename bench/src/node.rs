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

use crate::protocol::{Invocation, Request, Response, Setup};

/// The slowest request attaches a thousand pods with slow plugins.
const TIMEOUT: Duration = Duration::from_secs(1800);

/// Runs in the new namespaces: $1 is the node's directory on the disk, $2 is this program. On a machine without
/// /var/lib/cni the node's directory replaces all of /var/lib, so that the machine's own does not change.
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
    requests: Option<ChildStdin>,
    responses: Receiver<String>,
}

impl Node {
    /// Starts a node with its files in a new directory in `disk`. `allocator` is the program that runs the node's block
    /// allocator, if it has one.
    pub fn start(
        invocation: Invocation,
        network: Value,
        allocator: Option<PathBuf>,
        disk: &Path,
        realtime: bool,
    ) -> Result<Node> {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let home = disk.join(format!("podwire-bench.{}", std::process::id()));
        let state = home.join(number.to_string());
        std::fs::create_dir_all(&home).with_context(|| format!("create {}", home.display()))?;
        spread(&home);
        std::fs::create_dir_all(&state).with_context(|| format!("create {}", state.display()))?;
        let invocation =
            invocation.copied_to(&state.join("programs")).inspect_err(|_| drop(remove_state(&state)))?;
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
            // Ctrl-C ends the harness, but must not end the worker before it has cleaned up.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut worker = match started {
            Ok(worker) => worker,
            Err(error) => {
                remove_state(&state)?;
                return Err(error).with_context(|| format!("start {}", argv[0]));
            }
        };
        let (sender, responses) = mpsc::channel();
        let output = worker.stdout.take().context("the worker has no output")?;
        std::thread::spawn(move || {
            BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let requests = worker.stdin.take();
        let mut node = Node { worker, requests, responses };
        let setup = Setup { invocation, network, state: state.clone(), allocator };
        let counted = node.send(&setup).and_then(|()| node.request(Request::Count));
        // A worker that failed to start has not cleaned up.
        counted.inspect_err(|_| drop(remove_state(&state))).context("start a node")?;
        Ok(node)
    }

    /// Sends a request and waits for the response. A fault of the request as a whole is an error.
    pub fn request(&mut self, request: Request) -> Result<Response> {
        self.send(&request)?;
        let Ok(line) = self.responses.recv_timeout(TIMEOUT) else {
            bail!("no response from the node's worker");
        };
        let response: Response = serde_json::from_str(&line)?;
        match response.faults.first() {
            Some(fault) => bail!("{fault}"),
            None => Ok(response),
        }
    }

    fn send(&mut self, message: &impl serde::Serialize) -> Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        let requests = self.requests.as_mut().context("the node has ended")?;
        requests.write_all(&line).context("send to the node's worker")
    }
}

/// Makes ext4 place each directory in `home` in another part of the disk. Where ten thousand files were just deleted,
/// creating one is slow for minutes, and one scenario's deletions must not slow the next one. Other file systems have
/// no such flag.
fn spread(home: &Path) {
    let _ = Command::new("chattr").arg("+T").arg(home).stderr(Stdio::null()).status();
}

/// Removes a node's directory, and its parent directory if this was the last node.
pub fn remove_state(state: &Path) -> std::io::Result<()> {
    std::fs::remove_dir_all(state)?;
    if let Some(home) = state.parent() {
        let _ = std::fs::remove_dir(home);
    }
    Ok(())
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.requests.take());
        // The worker cleans up and ends when its standard input is closed.
        let _ = self.worker.wait();
    }
}
