//! The errors of labs, with hints for the user.

use std::path::PathBuf;

/// The result of an operation on a lab.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a lab could not be created, changed or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request is invalid.
    #[error("{what}")]
    Input {
        /// What is wrong.
        what: String,
        /// What to do instead.
        hint: String,
    },
    /// A lab of this name exists.
    #[error("lab {name} already exists: {spec}")]
    Exists {
        /// The name of the lab.
        name: String,
        /// Its specification, as text.
        spec: String,
    },
    /// No lab has this name.
    #[error("there is no lab {name}")]
    Unknown {
        /// The name.
        name: String,
        /// The existing labs.
        others: Vec<String>,
    },
    /// A node or pod does not run.
    #[error("lab {lab} has no running node or pod {name:?}")]
    NoMachine {
        /// The name of the lab.
        lab: String,
        /// The name of the node or pod.
        name: String,
        /// The machines of the lab.
        machines: Vec<String>,
    },
    /// The process of a machine could not be started.
    #[error("machine {name}: {source}")]
    Machine {
        /// The name of the machine.
        name: String,
        /// The cause.
        source: Box<podwire_sandbox::Error>,
    },
    /// The kernel refused an operation.
    #[error(transparent)]
    Kernel(#[from] podwire_kernel::Error),
    /// The kernel refused a netlink request.
    #[error(transparent)]
    Netlink(#[from] podwire_netlink::Error),
    /// The Services in the kernel of a node cannot be read.
    #[error(transparent)]
    Services(#[from] podwire_services::Error),
    /// A file or a process.
    #[error(transparent)]
    File(#[from] podwire_fs::FileError),
    /// The state file of a lab is invalid.
    #[error("read the state of the lab, {}: {why}", .path.display())]
    State {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A program on a machine failed.
    #[error("{doing} on {machine}: {output}")]
    Exec {
        /// The name of the machine.
        machine: String,
        /// The failed action.
        doing: String,
        /// The output of the program.
        output: String,
    },
    /// The lab did not become healthy in time.
    #[error("not healthy after {seconds} s: {why}")]
    NotHealthy {
        /// The time that was waited.
        seconds: u64,
        /// The first problem.
        why: String,
    },
    /// Pods do not run, or cannot carry traffic.
    #[error("{}", problems.join("; "))]
    Pods {
        /// The name of the lab.
        lab: String,
        /// The problem of each pod, with its name and node.
        problems: Vec<String>,
    },
    /// The kernel cannot create the devices of the backend.
    #[error("backend {backend}: {source}")]
    Backend {
        /// The backend.
        backend: String,
        /// The name of the kernel module that it needs.
        module: &'static str,
        /// The kernel's answer.
        source: podwire_netlink::Error,
    },
    /// etcd is not installed.
    #[error("the store etcd needs the program etcd, which is not installed")]
    NoEtcd,
    /// The store of the nodes failed.
    #[error("{doing}: {why}")]
    Store {
        /// The failed action.
        doing: String,
        /// The answer of the store.
        why: String,
    },
    /// The packets of `verify` could not be sent.
    #[error(transparent)]
    Verify(#[from] podwire_verify::Error),
    /// Creating a lab failed, and so did undoing it.
    #[error("{source}; undoing it failed too: {undo}")]
    Undo {
        /// The error of the creation.
        source: Box<Error>,
        /// The error of undoing it.
        undo: Box<Error>,
    },
}

impl Error {
    pub(crate) fn input(what: impl Into<String>, hint: impl Into<String>) -> Error {
        Error::Input { what: what.into(), hint: hint.into() }
    }

    pub(crate) fn machine(name: &str) -> impl FnOnce(podwire_sandbox::Error) -> Error + '_ {
        move |source| Error::Machine { name: name.into(), source: Box::new(source) }
    }

    /// What the user can do next; empty if there is no advice.
    pub fn hint(&self) -> String {
        match self {
            Error::Input { hint, .. } => hint.clone(),
            Error::Exists { name, .. } => {
                format!("remove it with `podwire lab down --name {name}`, or choose another --name")
            }
            Error::Unknown { others, .. } if others.is_empty() => {
                "start one with `podwire lab up --nodes 2`".into()
            }
            Error::Unknown { others, .. } => {
                format!("existing labs: {}; choose one with --name", others.join(", "))
            }
            Error::NoMachine { machines, .. } => format!("existing machines: {}", machines.join(", ")),
            Error::State { path, .. } => {
                format!("run `podwire lab down`, or remove {}", path.display())
            }
            Error::Pods { lab, .. } => {
                format!("`podwire lab break --name {lab} reboot-node NODE` starts a node and its pods again")
            }
            Error::Backend { module, .. } => {
                format!("load the kernel module with `modprobe {module}`, or choose another --backend")
            }
            Error::NoEtcd => "install it (Debian: apt install etcd-server), or use --store embedded".into(),
            Error::NotHealthy { .. } => {
                "`podwire lab status` shows every node; the logs are in the directory of the lab".into()
            }
            Error::Undo { source, .. } => source.hint(),
            _ => String::new(),
        }
    }
}
