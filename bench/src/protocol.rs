//! The requests of the harness to a node's worker, and the responses: one line of JSON each.

use std::ops::Range;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Pods are numbers. The names of their namespaces, their container ids and their host ports follow from the number.
pub type Pods = Range<u32>;

/// The programs that attach and detach a node's pods.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Invocation {
    /// Executes each plugin of the chain, as container runtimes do.
    Plugins {
        /// The directory with the plugins.
        folder: PathBuf,
    },
    /// Executes only the IPAM plugin of the chain's first plugin, as that plugin would.
    Ipam {
        /// The directory with the plugins.
        folder: PathBuf,
    },
    /// Executes one program instead of the chain's only plugin.
    Program {
        /// The program.
        file: PathBuf,
    },
    /// Calls Podwire's runtime library in the worker's process, as a container runtime written in Rust would.
    Runtime {
        /// The directory with the plugins.
        folder: PathBuf,
    },
    /// Executes `podwire cni`.
    Tool {
        /// The `podwire` program.
        file: PathBuf,
        /// The directory with the plugins.
        folder: PathBuf,
    },
}

/// The first line that a worker reads.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setup {
    /// What attaches and detaches pods.
    pub invocation: Invocation,
    /// The network: a CNI config list.
    pub network: Value,
    /// The directory with the node's files on the disk. The worker removes it when it ends.
    pub state: PathBuf,
    /// The `podwire` program that runs the node's block allocator, if the node has one.
    pub allocator: Option<PathBuf>,
}

/// A CNI verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verb {
    /// Attaches a pod.
    Add,
    /// Detaches it.
    Del,
}

impl Verb {
    /// The value of `CNI_COMMAND`.
    pub fn text(self) -> &'static str {
        match self {
            Verb::Add => "ADD",
            Verb::Del => "DEL",
        }
    }
}

/// A request to a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Runs VERSION of a plugin.
    Version {
        /// Its name.
        plugin: String,
    },
    /// Creates the network namespaces of pods.
    CreateNamespaces {
        /// The pods.
        pods: Pods,
    },
    /// Removes the network namespaces of pods, and waits until the kernel has deleted their links.
    RemoveNamespaces {
        /// The pods.
        pods: Pods,
    },
    /// Runs a verb for each of the pods.
    Run {
        /// The verb.
        verb: Verb,
        /// The pods.
        pods: Pods,
        /// How many at the same time.
        at_once: usize,
    },
    /// Checks an attached pod: its interface, its address, and that its gateway answers.
    CheckAttached {
        /// The pod.
        pod: u32,
    },
    /// Checks that a detached pod has no interface left.
    CheckDetached {
        /// The pod.
        pod: u32,
    },
    /// Writes leases as `host-local` would for this many pods.
    WriteLeases {
        /// How many.
        leases: u32,
    },
    /// Counts the objects of the node.
    Count,
}

/// One verb for one pod.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Op {
    /// The pod.
    pub pod: u32,
    /// Microseconds from before the first exec to after the last wait, without the worker's own JSON work.
    pub micros: f64,
    /// The address in ADD's result.
    pub address: Option<String>,
    /// What went wrong.
    pub fault: Option<String>,
}

/// The numbers of objects on a node. A difference between before and after a run means that something was left behind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Links of the node's own namespace.
    pub links: usize,
    /// Tables, chains, rules, sets and elements of nftables.
    pub firewall: usize,
    /// Files under the node's /run and /var/lib.
    pub files: usize,
}

/// A worker's response.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Response {
    /// The operations that the request ran.
    pub ops: Vec<Op>,
    /// Seconds from the first operation's start to the last one's end.
    pub seconds: f64,
    /// The counts, if the request was for them.
    pub counts: Option<Counts>,
    /// What went wrong besides operations.
    pub faults: Vec<String>,
}
