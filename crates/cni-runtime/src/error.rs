//! What can go wrong, as the caller of a runtime can act on it.

use std::io;
use std::path::{Path, PathBuf};

use podwire_cni_spec::code;

/// The result of a runtime's step.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a container could not be attached, detached, checked or swept up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A name, config or record that makes no sense.
    #[error(transparent)]
    Cni(#[from] podwire_cni_spec::Error),
    /// A plugin failed, or could not be run.
    #[error("{}: {source}", whose(.kind, .network, .verb))]
    Plugin {
        /// The plugin.
        kind: String,
        /// The network that it was called for; may be empty for `version`.
        network: String,
        /// `add`, `delete`, `check`, `gc`, `status` or `version`.
        verb: &'static str,
        /// What it said.
        source: Box<podwire_cni_plugin::Error>,
    },
    /// ADD failed, and so did taking back what it had done.
    #[error("{source}; taking back what was done failed too: {}", joined(.undo))]
    Undo {
        /// Why ADD failed.
        source: Box<Error>,
        /// What could not be taken back.
        undo: Vec<Error>,
    },
    /// ADD failed for a container that is attached already. Nothing was taken back: it may be in use.
    #[error("{source}; the container is attached already, says {}", .record.display())]
    Attached {
        /// The record of the earlier ADD.
        record: PathBuf,
        /// Why this one failed.
        source: Box<Error>,
    },
    /// The folder has no such network.
    #[error("{}", absent(.folder, .name))]
    NotFound {
        /// The folder.
        folder: PathBuf,
        /// The network; none if any would do.
        name: Option<String>,
        /// The networks that are there.
        present: Vec<String>,
        /// The files that could not be read: the network may be in one of them.
        problems: Vec<Problem>,
    },
    /// The record's file belongs to another attachment whose names read the same when joined by `-`.
    #[error("record {} belongs to another attachment: {owner}", .path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Whose it is: network/container/interface.
        owner: String,
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
    /// Several things failed, and each is worth knowing.
    #[error("{}", joined(.0))]
    Several(Vec<Error>),
}

/// A file that was skipped, and why.
#[derive(Debug, thiserror::Error)]
#[error("{}{error}", place(.path, .error))]
pub struct Problem {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub error: Error,
}

impl Error {
    /// `Ok` if `errors` is empty, the error itself if there is one, else all of them.
    pub fn all(mut errors: Vec<Error>) -> Result<()> {
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(Error::Several(errors)),
        }
    }

    /// The CNI error code: the failing plugin's own, where a plugin failed.
    pub fn code(&self) -> u32 {
        match self {
            Error::Cni(error) => error.code,
            Error::Plugin { source, .. } => source.to_cni().code,
            Error::Undo { source, .. } | Error::Attached { source, .. } => source.code(),
            Error::NotFound { .. } => code::INVALID_CONFIG,
            Error::Foreign { .. } => code::INVALID_ENV,
            Error::File { .. } => code::IO,
            Error::Several(all) => all.first().map_or(code::INTERNAL, Error::code),
        }
    }

    /// The spec's error object: code, what happened, and in its details what to do next.
    pub fn to_cni(&self) -> podwire_cni_spec::Error {
        let (msg, hint) = match self {
            Error::Cni(error) => (error.msg.clone(), error.details.clone()),
            Error::Plugin { kind, network, verb, source } => {
                let inner = source.to_cni();
                (format!("{}: {}", whose(kind, network, verb), inner.msg), inner.details)
            }
            Error::Undo { .. } => {
                (self.to_string(), "DEL the container, or GC the network, until it succeeds".into())
            }
            Error::Attached { .. } => (self.to_string(), "DEL it first".into()),
            Error::NotFound { present, problems, .. } => (self.to_string(), nearby(present, problems)),
            Error::Foreign { .. } => (self.to_string(), "choose another container id or network name".into()),
            Error::File { source, .. } => (self.to_string(), of_file(source)),
            Error::Several(all) => {
                (self.to_string(), all.first().map(|e| e.to_cni().details).unwrap_or_default())
            }
        };
        podwire_cni_spec::Error::new(self.code(), msg).with_details(hint)
    }

    pub(crate) fn file(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::File { doing, path, source }
    }
}

/// Where the problem is, unless its error says so itself.
fn place(path: &Path, error: &Error) -> String {
    match error {
        Error::File { path: named, .. } if named == path => String::new(),
        _ => format!("{}: ", path.display()),
    }
}

fn joined(errors: &[Error]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// The words of libcni, which runbooks know.
fn whose(kind: &str, network: &str, verb: &str) -> String {
    match network {
        "" => format!("plugin type={kind:?} failed ({verb})"),
        _ => format!("plugin type={kind:?} name={network:?} failed ({verb})"),
    }
}

/// Likewise.
fn absent(folder: &Path, name: &Option<String>) -> String {
    match name {
        Some(name) => format!("no net configuration with name {name:?} in {}", folder.display()),
        None => format!("no net configurations found in {}", folder.display()),
    }
}

fn nearby(present: &[String], problems: &[Problem]) -> String {
    let there = match present {
        [] => "no network is there".to_owned(),
        names => format!("there are: {}", names.join(", ")),
    };
    problems.iter().fold(there, |text, problem| format!("{text}; skipped {problem}"))
}

fn of_file(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "root is needed".into(),
        io::ErrorKind::StorageFull => "the disk is full".into(),
        io::ErrorKind::ReadOnlyFilesystem => "choose a cache folder that can be written".into(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugins_code_and_hint_survive_every_wrapping() {
        let source =
            Box::new(podwire_cni_spec::Error::new(11, "pool is full").with_details("add a range").into());
        let plugin = Error::Plugin { kind: "bridge".into(), network: "pods".into(), verb: "add", source };
        assert_eq!(
            plugin.to_string(),
            r#"plugin type="bridge" name="pods" failed (add): pool is full; add a range"#
        );
        let cni = plugin.to_cni();
        assert_eq!((cni.code, cni.details.as_str()), (11, "add a range"));
        let undo = Error::Undo {
            source: Box::new(plugin),
            undo: vec![podwire_cni_spec::Error::internal("stuck").into()],
        };
        assert_eq!(undo.code(), 11);
        assert!(undo.to_string().ends_with("taking back what was done failed too: stuck"), "{undo}");
    }

    #[test]
    fn a_missing_network_names_its_neighbours_and_the_files_that_were_skipped() {
        let problem = Problem {
            path: "/n/10-x.conflist".into(),
            error: podwire_cni_spec::Error::decode("torn").into(),
        };
        let error = Error::NotFound {
            folder: "/n".into(),
            name: Some("x".into()),
            present: vec!["a".into(), "b".into()],
            problems: vec![problem],
        };
        assert_eq!(error.to_string(), r#"no net configuration with name "x" in /n"#);
        assert_eq!(error.to_cni().details, "there are: a, b; skipped /n/10-x.conflist: torn");
    }
}
