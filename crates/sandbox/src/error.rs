//! What can go wrong with a pod, as whoever runs it can act on it.

use std::io;
use std::path::{Path, PathBuf};

use podwire_cni_spec::code;

use crate::PodName;

/// The result of something done to a pod.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a pod could not be run, stopped or looked at.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What was asked for makes no sense.
    #[error(transparent)]
    Input(#[from] podwire_cni_spec::Error),
    /// A network could not be found, or a plugin failed.
    #[error(transparent)]
    Network(#[from] podwire_cni_runtime::Error),
    /// The kernel refused something.
    #[error(transparent)]
    Kernel(#[from] podwire_kernel::Error),
    /// A pod of this name is there.
    #[error("pod {name} exists already: it is {state}")]
    Exists {
        /// The pod.
        name: PodName,
        /// What it does.
        state: crate::State,
    },
    /// No pod has this name.
    #[error("there is no pod {0}")]
    Unknown(PodName),
    /// Nothing can be done in a pod whose process is gone.
    #[error("pod {name} is not running: it is {state}")]
    NotRunning {
        /// The pod.
        name: PodName,
        /// What it does.
        state: crate::State,
    },
    /// The process that holds a pod's namespaces could not be started, or not do its work.
    #[error("start the process of pod {name}: {why}")]
    Pause {
        /// The pod.
        name: PodName,
        /// Its words, or the kernel's.
        why: String,
    },
    /// The process that holds a pod's namespaces does not end.
    #[error("process {pid} of pod {name} does not end")]
    Endless {
        /// The pod.
        name: PodName,
        /// The process.
        pid: u32,
    },
    /// A file could not be read or written.
    #[error("{doing} {}: {source}", .path.display())]
    File {
        /// What was being done.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// What is known of a pod cannot be understood.
    #[error("checkpoint {}: {why}", .path.display())]
    Checkpoint {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// Running a pod failed, and so did taking back what had been done.
    #[error("{source}; taking back what was done failed too: {undo}")]
    Undo {
        /// Why it failed.
        source: Box<Error>,
        /// What could not be taken back.
        undo: Box<Error>,
    },
    /// Several things failed, and each is worth knowing.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Several(Vec<Error>),
}

impl Error {
    pub(crate) fn file(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::File { doing, path, source }
    }

    /// `Ok` if `errors` is empty, the error itself if there is one, else all of them.
    pub(crate) fn all(mut errors: Vec<Error>) -> Result<()> {
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(Error::Several(errors)),
        }
    }

    /// As the spec's error object: code, what happened, and in its details what to do next.
    pub fn to_cni(&self) -> podwire_cni_spec::Error {
        let own =
            |code: u32, hint: &str| podwire_cni_spec::Error::new(code, self.to_string()).with_details(hint);
        match self {
            Error::Input(error) => error.clone(),
            Error::Network(error) => error.to_cni(),
            Error::Kernel(_) => own(code::INTERNAL, ""),
            Error::Exists { name, .. } => {
                own(code::INVALID_ENV, &format!("choose another name, or `podwire pod rm {}`", spelled(name)))
            }
            Error::Unknown(_) => {
                own(code::UNKNOWN_CONTAINER, "`podwire pod list` shows those that are there")
            }
            Error::NotRunning { name, .. } => own(
                code::UNKNOWN_CONTAINER,
                &format!("`podwire pod rm {}` removes what is left of it", spelled(name)),
            ),
            Error::Pause { .. } => own(code::INTERNAL, ""),
            Error::Endless { .. } => {
                own(code::TRY_AGAIN, "it waits for a device or a disk in the kernel: try again")
            }
            Error::File { .. } => own(code::IO, ""),
            Error::Checkpoint { .. } => own(code::DECODE, "`podwire pod rm --force` forgets the pod"),
            Error::Undo { source, .. } => {
                let hint = "`podwire pod rm` of the pod takes back the rest when the cause is mended";
                podwire_cni_spec::Error::new(source.to_cni().code, self.to_string()).with_details(hint)
            }
            Error::Several(all) => {
                let first = all.first().map(Error::to_cni);
                let (code, hint) =
                    first.map_or((code::INTERNAL, String::new()), |one| (one.code, one.details));
                own(code, &hint)
            }
        }
    }
}

/// How commands take the name.
fn spelled(name: &PodName) -> String {
    match name.namespace() {
        "default" => name.name().to_owned(),
        _ => name.to_string(),
    }
}
