//! Errors of pod operations.

use std::io;
use std::path::{Path, PathBuf};

use podwire_cni_spec::code;
use podwire_fs::FileError;

use crate::PodName;

/// The result of a pod operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a pod operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request is invalid.
    #[error(transparent)]
    Input(#[from] podwire_cni_spec::Error),
    /// A network could not be found, or a plugin failed.
    #[error(transparent)]
    Network(#[from] podwire_cni_runtime::Error),
    /// The kernel refused an operation.
    #[error(transparent)]
    Kernel(#[from] podwire_kernel::Error),
    /// A pod of this name exists.
    #[error("pod {name} already exists: it is {state}")]
    Exists {
        /// The pod.
        name: PodName,
        /// Its state.
        state: crate::State,
    },
    /// No pod has this name.
    #[error("there is no pod {0}")]
    Unknown(PodName),
    /// The pod's process is not running.
    #[error("pod {name} is not running: it is {state}")]
    NotRunning {
        /// The pod.
        name: PodName,
        /// Its state.
        state: crate::State,
    },
    /// The pause process could not be started or failed.
    #[error("start the process of pod {name}: {reason}")]
    Pause {
        /// The pod.
        name: PodName,
        /// Its error text, or the kernel's.
        reason: String,
    },
    /// The pause process does not end.
    #[error("process {pid} of pod {name} does not end")]
    StillRunning {
        /// The pod.
        name: PodName,
        /// The process.
        pid: u32,
    },
    /// A file could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A checkpoint is invalid.
    #[error("checkpoint {}: {reason}", .path.display())]
    Checkpoint {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Starting a pod failed, and so did the cleanup.
    #[error("{source}; the cleanup failed too: {undo}")]
    Undo {
        /// Why it failed.
        source: Box<Error>,
        /// Why the cleanup failed.
        undo: Box<Error>,
    },
    /// Several operations failed.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Several(Vec<Error>),
}

impl Error {
    /// For `map_err`: names the action and the path.
    pub(crate) fn file(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        let at = FileError::at(doing, path.to_owned());
        move |source| at(source).into()
    }

    /// `Ok` if `errors` is empty, the error itself if there is one, else all of them.
    pub(crate) fn all(mut errors: Vec<Error>) -> Result<()> {
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(Error::Several(errors)),
        }
    }

    /// The spec's error object; it says what to do next.
    pub fn to_cni(&self) -> podwire_cni_spec::Error {
        let own =
            |code: u32, hint: &str| podwire_cni_spec::Error::new(code, self.to_string()).with_details(hint);
        match self {
            Error::Input(error) => error.clone(),
            Error::Network(error) => error.to_cni(),
            Error::Kernel(_) => own(code::INTERNAL, ""),
            Error::Exists { name, .. } => own(
                code::INVALID_ENV,
                &format!("choose another name, or `podwire pod rm {}`", argument(name)),
            ),
            Error::Unknown(_) => own(code::UNKNOWN_CONTAINER, "`podwire pod list` shows the existing pods"),
            Error::NotRunning { name, .. } => own(
                code::UNKNOWN_CONTAINER,
                &format!("`podwire pod rm {}` removes what is left of it", argument(name)),
            ),
            Error::Pause { .. } => own(code::INTERNAL, ""),
            Error::StillRunning { .. } => {
                own(code::TRY_AGAIN, "it waits for a device or disk in the kernel: try again")
            }
            Error::File(_) => own(code::IO, ""),
            Error::Checkpoint { .. } => {
                own(code::DECODE, "`podwire pod rm --force` removes the pod without it")
            }
            Error::Undo { source, .. } => {
                let hint = "fix the cause, then `podwire pod rm` of the pod removes the rest";
                podwire_cni_spec::Error::new(source.to_cni().code, self.to_string()).with_details(hint)
            }
            Error::Several(all) => {
                let first = all.first().map(Error::to_cni);
                let (code, hint) =
                    first.map_or((code::INTERNAL, String::new()), |one| (one.code, one.advice()));
                own(code, &hint)
            }
        }
    }
}

/// The name as commands take it.
fn argument(name: &PodName) -> String {
    match name.namespace() {
        "default" => name.name().to_owned(),
        _ => name.to_string(),
    }
}
