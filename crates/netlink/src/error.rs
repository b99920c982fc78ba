//! What the kernel said no to, and in which words.

use std::io;

/// The result of talking to the kernel.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A conversation with the kernel that did not go as wanted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused a request.
    #[error("{doing}: {}{}", text(*errno), note.as_ref().map(|n| format!(" (kernel: {n})")).unwrap_or_default())]
    Refused {
        /// What was asked for, with the object's name.
        doing: String,
        /// The kernel's error number, as in errno.h.
        errno: i32,
        /// The kernel's extended acknowledgement: a sentence, when it has one.
        note: Option<String>,
    },
    /// The socket itself failed.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: String,
        /// The system's answer.
        source: io::Error,
    },
    /// The kernel's answer could not be understood.
    #[error("{doing}: unexpected answer from the kernel: {reason}")]
    Malformed {
        /// What was being done.
        doing: String,
        /// What was wrong with the answer.
        reason: String,
    },
    /// Nothing came in the time that was given.
    #[error("{doing}: no answer from the kernel after {seconds} s")]
    Timeout {
        /// What was waited for.
        doing: String,
        /// How long.
        seconds: u64,
    },
}

impl Error {
    /// The errno behind this error, if the kernel gave one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Error::Refused { errno, .. } => Some(*errno),
            Error::Io { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    /// Whether the object was there already.
    pub fn is_exists(&self) -> bool {
        self.errno() == Some(libc::EEXIST)
    }

    /// Whether the object (or the device that holds it) is not there.
    pub fn is_gone(&self) -> bool {
        matches!(
            self.errno(),
            Some(libc::ENOENT | libc::ENODEV | libc::ESRCH | libc::EADDRNOTAVAIL | libc::ENXIO)
        )
    }

    /// Whether the running kernel lacks the feature.
    pub fn is_unsupported(&self) -> bool {
        matches!(self.errno(), Some(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::EAFNOSUPPORT))
    }
}

/// The system's words for an error number, without Rust's "(os error N)".
pub(crate) fn text(errno: i32) -> String {
    let full = io::Error::from_raw_os_error(errno).to_string();
    match full.find(" (os error") {
        Some(at) => full[..at].to_lowercase(),
        None => full,
    }
}

/// Turns "not there" into `None`.
pub(crate) fn found<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_reads_like_a_sentence() {
        let error = Error::Refused {
            doing: "create veth eth0".into(),
            errno: libc::EEXIST,
            note: Some("name taken".into()),
        };
        assert_eq!(error.to_string(), "create veth eth0: file exists (kernel: name taken)");
        assert!(error.is_exists() && !error.is_gone());
    }
}
