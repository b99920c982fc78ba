//! Errors of the runtime.

use std::io;
use std::path::{Path, PathBuf};

use podwire_cni_spec::code;
use podwire_fs::FileError;

/// The result of a runtime operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a runtime operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An invalid name, config or record.
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
        /// The network's config file, if it was read from one.
        file: Option<PathBuf>,
        /// Its error.
        source: Box<podwire_cni_plugin::Error>,
    },
    /// ADD failed, and so did its cleanup.
    #[error("{source}; the cleanup failed too: {}", joined(.undo))]
    Undo {
        /// Why ADD failed.
        source: Box<Error>,
        /// The errors of the cleanup.
        undo: Vec<Error>,
    },
    /// ADD failed for a container that is already attached. Nothing was undone: it may be in use.
    #[error("{source}; the container is already attached, according to {}", .record.display())]
    Attached {
        /// The record of the earlier ADD.
        record: PathBuf,
        /// Why this one failed.
        source: Box<Error>,
    },
    /// The directory has no such network.
    #[error("{}", absent(.folder, .name))]
    NotFound {
        /// The directory.
        folder: PathBuf,
        /// The network; `None` for the default one.
        name: Option<String>,
        /// The existing networks.
        present: Vec<String>,
        /// The files that could not be read: the network may be in one of them.
        problems: Vec<Problem>,
    },
    /// The record's file belongs to another attachment whose names read the same when joined by `-`.
    #[error("record {} belongs to another attachment: {owner}", .path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Its owner: network/container/interface.
        owner: String,
    },
    /// A file could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// Several operations failed.
    #[error("{}", joined(.0))]
    Several(Vec<Error>),
}

/// A file that was skipped, and why.
#[derive(Debug, thiserror::Error)]
#[error("{}{error}", prefix(.path, .error))]
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
            Error::File(_) => code::IO,
            Error::Several(all) => all.first().map_or(code::INTERNAL, Error::code),
        }
    }

    /// The spec's error object: code, what happened, and what to do next.
    pub fn to_cni(&self) -> podwire_cni_spec::Error {
        let error = match self {
            Error::Cni(error) => error.clone(),
            Error::Plugin { kind, network, verb, source, .. } => {
                let inner = source.to_cni();
                let msg = format!("{}: {}", whose(kind, network, verb), inner.msg);
                podwire_cni_spec::Error { msg, ..inner }
            }
            _ => podwire_cni_spec::Error::new(self.code(), self.to_string()).with_details(self.hint()),
        };
        let Some(file) = self.config_file() else { return error };
        let place = config_in(file);
        let details = if error.details.is_empty() { place } else { format!("{}; {place}", error.details) };
        error.with_details(details)
    }

    /// What to do next.
    fn hint(&self) -> String {
        match self {
            Error::Cni(error) => error.advice(),
            Error::Plugin { source, .. } => source.to_cni().advice(),
            Error::Undo { .. } => "DEL the container, or GC the network, until it succeeds".into(),
            Error::Attached { .. } => "DEL it first".into(),
            Error::NotFound { present, problems, .. } => nearby(present, problems),
            Error::Foreign { .. } => "choose another container id or network name".into(),
            Error::File(error) => file_hint(&error.source),
            Error::Several(all) => all.first().map(|error| error.to_cni().advice()).unwrap_or_default(),
        }
    }

    /// The file where the config is to be corrected, if that is what failed.
    fn config_file(&self) -> Option<&Path> {
        const OF_CONFIG: [u32; 3] =
            [code::INVALID_CONFIG, code::UNSUPPORTED_FIELD, code::INCOMPATIBLE_VERSION];
        match self {
            Error::Plugin { file, .. } => file.as_deref().filter(|_| OF_CONFIG.contains(&self.code())),
            Error::Undo { source, .. } | Error::Attached { source, .. } => source.config_file(),
            _ => None,
        }
    }

    /// For `map_err`: names the action and the path.
    pub(crate) fn file(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        let at = FileError::at(doing, path.to_owned());
        move |source| at(source).into()
    }
}

/// The path, unless the error names it.
fn prefix(path: &Path, error: &Error) -> String {
    match error {
        Error::File(file) if file.path == path => String::new(),
        _ => format!("{}: ", path.display()),
    }
}

fn joined(errors: &[Error]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// The last part of the hint of an error in a config.
pub(crate) fn config_in(file: &Path) -> String {
    format!("the config is in {}", file.display())
}

/// libcni's text, which runbooks know.
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
        [] => "there are no networks".to_owned(),
        names => format!("there are: {}", names.join(", ")),
    };
    problems.iter().fold(there, |text, problem| format!("{text}; skipped {problem}"))
}

fn file_hint(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "root is needed".into(),
        io::ErrorKind::StorageFull => "the disk is full".into(),
        io::ErrorKind::ReadOnlyFilesystem => "choose a writable cache directory".into(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugins_code_and_hint_are_kept() {
        let source =
            Box::new(podwire_cni_spec::Error::new(11, "pool is full").with_details("add a range").into());
        let (kind, network, file) = ("bridge".into(), "pods".into(), Some("/n/pods.conflist".into()));
        let plugin = Error::Plugin { kind, network, verb: "add", file, source };
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
        assert!(undo.to_string().ends_with("the cleanup failed too: stuck"), "{undo}");
    }

    #[test]
    fn an_error_of_the_config_names_its_file() {
        let hint = |details: &str| {
            let source = podwire_cni_spec::Error::invalid_config("no such VLAN").with_details(details);
            let (kind, network, file) = ("bridge".into(), "pods".into(), Some("/n/pods.conflist".into()));
            Error::Plugin { kind, network, verb: "add", file, source: Box::new(source.into()) }
                .to_cni()
                .details
        };
        assert_eq!(hint(""), "the config is in /n/pods.conflist");
        assert_eq!(hint("choose 1 to 4094"), "choose 1 to 4094; the config is in /n/pods.conflist");
    }

    #[test]
    fn a_missing_network_error_lists_the_networks_and_skipped_files() {
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
