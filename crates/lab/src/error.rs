//! What can go wrong with a lab, as whoever plays with it can act on it.

use std::io;
use std::path::{Path, PathBuf};

/// The result of something done to a lab.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a lab could not be made, changed or looked at.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What was asked for makes no sense.
    #[error("{what}")]
    Input {
        /// Why.
        what: String,
        /// What to do instead.
        hint: String,
    },
    /// A lab of this name is there.
    #[error("lab {name} is there already: {what}")]
    Exists {
        /// The lab.
        name: String,
        /// What it is like.
        what: String,
    },
    /// No lab has this name.
    #[error("there is no lab {name}")]
    Unknown {
        /// The name.
        name: String,
        /// Those that are there.
        others: Vec<String>,
    },
    /// A machine is not there.
    #[error("lab {lab} has no living node or pod {name:?}")]
    NoMachine {
        /// The lab.
        lab: String,
        /// What was asked for.
        name: String,
        /// What there is.
        machines: Vec<String>,
    },
    /// A machine's process.
    #[error("machine {name}: {source}")]
    Machine {
        /// The machine.
        name: String,
        /// What happened.
        source: Box<podwire_sandbox::Error>,
    },
    /// The kernel refused something.
    #[error(transparent)]
    Kernel(#[from] podwire_kernel::Error),
    /// The kernel refused something.
    #[error(transparent)]
    Netlink(#[from] podwire_netlink::Error),
    /// A file or a process.
    #[error("{doing} {}: {source}", .path.display())]
    File {
        /// What was being done.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// What is known of a lab cannot be understood.
    #[error("state of the lab, {}: {why}", .path.display())]
    State {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// A program on a machine failed.
    #[error("{doing} on {machine}: {said}")]
    Inside {
        /// The machine.
        machine: String,
        /// What was being done.
        doing: String,
        /// The program's words.
        said: String,
    },
    /// It took too long.
    #[error("after {} s still not whole: {why}", .seconds)]
    NotWhole {
        /// How long it was waited.
        seconds: u64,
        /// What is missing.
        why: String,
    },
    /// etcd is not installed.
    #[error("the store etcd needs the program etcd, which is not installed")]
    NoEtcd,
    /// The place where the nodes are known.
    #[error("{doing}: {why}")]
    Store {
        /// What was being done.
        doing: String,
        /// What was answered.
        why: String,
    },
    /// Packets could not be sent at all.
    #[error(transparent)]
    Verify(#[from] podwire_verify::Error),
    /// Making a lab failed, and so did taking it back.
    #[error("{source}; taking it back failed too: {undo}")]
    Undo {
        /// Why it failed.
        source: Box<Error>,
        /// What could not be taken back.
        undo: Box<Error>,
    },
}

impl Error {
    pub(crate) fn input(what: impl Into<String>, hint: impl Into<String>) -> Error {
        Error::Input { what: what.into(), hint: hint.into() }
    }

    pub(crate) fn file(doing: &'static str, path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Error {
        let path = path.as_ref().to_owned();
        move |source| Error::File { doing, path, source }
    }

    pub(crate) fn machine(name: &str) -> impl FnOnce(podwire_sandbox::Error) -> Error + '_ {
        move |source| Error::Machine { name: name.into(), source: Box::new(source) }
    }

    /// What to do next, if that can be said.
    pub fn hint(&self) -> String {
        match self {
            Error::Input { hint, .. } => hint.clone(),
            Error::Exists { name, .. } => format!(
                "look at it: podwire lab status --name {name}; end it: podwire lab down --name {name}; or choose another --name"
            ),
            Error::Unknown { others, .. } if others.is_empty() => {
                "there are no labs: podwire lab up --nodes 2 makes one".into()
            }
            Error::Unknown { others, .. } => {
                format!("there are {}: choose one with --name", others.join(", "))
            }
            Error::NoMachine { machines, .. } => format!("there are {}", machines.join(", ")),
            Error::State { path, .. } => {
                format!("podwire lab down ends what it can; else remove {}", path.display())
            }
            Error::NoEtcd => "install it (Debian: apt install etcd-server), or use --store embedded".into(),
            Error::NotWhole { .. } => "podwire lab status shows each node; its log is in the lab's folder".into(),
            Error::Undo { source, .. } => source.hint(),
            _ => String::new(),
        }
    }
}
