//! The requests of the harness to a node's worker, and the responses: one line of JSON each.

use std::ops::Range;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Pods are numbers; a node's namespaces, container ids and host ports follow from them.
pub type Pods = Range<u32>;

/// How a node's pods get their network.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Way {
    /// Every plugin of the chain is executed, as container runtimes do.
    Plugins {
        /// The folder with the plugins.
        folder: PathBuf,
    },
    /// Only the first plugin's IPAM plugin is executed, as that plugin would.
    Ipam {
        /// The folder with the plugins.
        folder: PathBuf,
    },
    /// One program replaces the chain's only plugin.
    Program {
        /// The program.
        file: PathBuf,
    },
    /// Our runtime, as a library in a process that is there already (a container runtime's), runs the chain.
    Runtime {
        /// The folder with the plugins.
        folder: PathBuf,
    },
    /// Our hand tool runs the chain.
    Tool {
        /// The `podwire` program.
        file: PathBuf,
        /// The folder with the plugins.
        folder: PathBuf,
    },
}

/// The first line that a worker reads.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// How pods are attached.
    pub way: Way,
    /// The network: a CNI config list.
    pub network: Value,
    /// Where the node's files lie on the disk; removed by the worker when it ends.
    pub state: PathBuf,
    /// The `podwire` program, if it is to own the node's blocks of addresses.
    pub allocator: Option<PathBuf>,
}

/// A CNI verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verb {
    /// Attach a pod.
    Add,
    /// Detach it.
    Del,
}

impl Verb {
    /// As in `CNI_COMMAND`.
    pub fn text(self) -> &'static str {
        match self {
            Verb::Add => "ADD",
            Verb::Del => "DEL",
        }
    }
}

/// A request to a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Order {
    /// Ask a plugin for its versions.
    Version {
        /// Its name.
        plugin: String,
    },
    /// Make the pods' namespaces.
    Make {
        /// Which.
        pods: Pods,
    },
    /// Remove the pods' namespaces and wait until the kernel has.
    Remove {
        /// Which.
        pods: Pods,
    },
    /// Carry out a verb for each of the pods.
    Run {
        /// The verb.
        verb: Verb,
        /// Which pods.
        pods: Pods,
        /// How many at the same time.
        at_once: usize,
    },
    /// Look into an attached pod: interface, address, a gateway that answers.
    Look {
        /// Which.
        pod: u32,
    },
    /// See that a detached pod has no interface left.
    Gone {
        /// Which.
        pod: u32,
    },
    /// Write leases as `host-local` would have for this many pods.
    Seed {
        /// How many.
        leases: u32,
    },
    /// Count what there is on the node.
    Count,
}

/// One verb for one pod.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Op {
    /// The pod.
    pub pod: u32,
    /// Microseconds from before the first exec to after the last wait, our own JSON work left out.
    pub micros: f64,
    /// The address that the pod was given.
    pub address: Option<String>,
    /// What went wrong.
    pub fault: Option<String>,
}

/// What a node holds; the same before and after a run, or something was left behind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Links of the node's own namespace.
    pub links: usize,
    /// Tables, chains, rules, sets and elements of nftables.
    pub firewall: usize,
    /// Files under the node's /run and /var/lib.
    pub files: usize,
}

/// A worker's answer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Answer {
    /// The operations, if some were asked for.
    pub ops: Vec<Op>,
    /// Seconds that they took together.
    pub seconds: f64,
    /// What the node holds, if that was asked for.
    pub tally: Option<Tally>,
    /// What went wrong besides operations.
    pub faults: Vec<String>,
}
