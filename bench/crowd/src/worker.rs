//! The worker on a node: this program again, which attaches the node's pods as a container runtime does, one after the
//! other.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{ensure, Context, Result};
use podwire_kernel::Netns;
use podwire_tests::podwire;
use serde::{de::DeserializeOwned, Deserialize, Serialize};
use serde_json::Value;

use crate::exec::{clean, timed};

/// The work of a node.
#[derive(Debug, Serialize, Deserialize)]
pub struct Job {
    pub node: String,
    pub pods: usize,
    /// The directory with the plugins.
    pub folder: PathBuf,
    /// The plugin's config, as a runtime passes it.
    pub config: Value,
}

/// The measurements of a node.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Done {
    /// The time of each ADD, from before the plugin's start to after its end.
    pub millis: Vec<f64>,
    /// Each pod's first address.
    pub addresses: Vec<String>,
}

/// The file of a pod's network namespace.
pub fn namespace(pod: usize) -> String {
    format!("/run/netns/pod{pod}")
}

/// Reads a job, creates the namespaces of its pods and waits for another line. Then attaches the pods and prints the
/// times.
pub fn main() -> Result<()> {
    let mut lines = std::io::stdin().lock().lines();
    let mut line = || lines.next().context("the harness has ended")?.context("read a request");
    let job: Job = serde_json::from_str(&line()?)?;
    for pod in 0..job.pods {
        Netns::create(namespace(pod))?;
    }
    send(&"ready")?;
    line()?;
    let mut done = Done::default();
    let config = serde_json::to_vec(&job.config)?;
    for pod in 0..job.pods {
        let ended = timed(job.add(pod)?, &config)?;
        ensure!(ended.fault.is_none(), "{}, pod {pod}: {}", job.node, ended.fault.unwrap_or_default());
        let result: Value = serde_json::from_slice(&ended.output)?;
        let address = result["ips"][0]["address"].as_str().and_then(|address| address.split('/').next());
        done.addresses.push(address.context("a pod without an address")?.to_owned());
        done.millis.push(ended.micros / 1e3);
    }
    send(&done)
}

impl Job {
    fn add(&self, pod: usize) -> Result<Command> {
        let kind = self.config["type"].as_str().context("a plugin without a type")?;
        let mut command = clean(self.folder.join(kind));
        let name = format!("{}-pod{pod}", self.node);
        command
            .env("CNI_COMMAND", "ADD")
            .env("CNI_CONTAINERID", format!("{name:x<64}"))
            .env("CNI_NETNS", namespace(pod))
            .env("CNI_IFNAME", "eth0")
            .env("CNI_ARGS", format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=crowd;K8S_POD_NAME={name}"))
            .env("CNI_PATH", &self.folder);
        Ok(command)
    }
}

fn send(message: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(std::io::stdout().lock().write_all(&line)?)
}

/// The harness' side of a worker.
pub struct Worker {
    child: Child,
    responses: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts a worker on a node of a lab. Returns when the worker waits for the start line.
    pub fn start(lab: &str, job: &Job) -> Result<Worker> {
        let own = std::env::current_exe()?;
        let mut command = Command::new(podwire());
        command.args(["lab", "exec", "--name", lab, &job.node, "--"]).arg(own).arg(crate::WORKER);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let responses = BufReader::new(child.stdout.take().context("no output")?);
        let mut worker = Worker { child, responses };
        worker.send(job)?;
        let response: String = worker.receive()?;
        ensure!(response == "ready", "{}: {response}", job.node);
        Ok(worker)
    }

    pub fn begin(&mut self) -> Result<()> {
        self.send(&"begin")
    }

    fn send(&mut self, message: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.child.stdin.as_mut().context("no input")?.write_all(&line).context("send to a node's worker")
    }

    /// Waits for a response.
    pub fn receive<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut line = String::new();
        self.responses.read_line(&mut line)?;
        serde_json::from_str(&line).context("a node's worker failed: see above")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Whether a directory has this program.
pub fn has(folder: &str, program: &str) -> bool {
    Path::new(folder).join(program).is_file()
}
