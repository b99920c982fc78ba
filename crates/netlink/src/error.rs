//! Errors of netlink requests.

use std::io;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A netlink request that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused a request.
    #[error("{doing}: {}{}", text(*errno), note.as_ref().map(|n| format!(" (kernel: {n})")).unwrap_or_default())]
    Refused {
        /// The request, with the object's name.
        doing: String,
        /// The kernel's errno.
        errno: i32,
        /// The text of the kernel's extended acknowledgement, if there is one.
        note: Option<String>,
    },
    /// The socket itself failed.
    #[error("{doing}: {source}")]
    Io {
        /// The operation.
        doing: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel's answer could not be decoded.
    #[error("{doing}: unexpected answer from the kernel: {reason}")]
    Malformed {
        /// The operation.
        doing: String,
        /// What was wrong with the answer.
        reason: String,
    },
    /// Other programs changed the rules during every attempt of an optimistic transaction.
    #[error("other programs changed the nf_tables rules {attempts} times in a row (see `nft monitor`)")]
    Contended {
        /// The number of attempts.
        attempts: usize,
    },
    /// The kernel did not answer in time.
    #[error("{doing}: no answer from the kernel after {seconds} s")]
    Timeout {
        /// The operation.
        doing: String,
        /// The timeout.
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

    /// Whether the object already exists.
    pub fn is_exists(&self) -> bool {
        self.errno() == Some(libc::EEXIST)
    }

    /// Whether the object, or its device, does not exist.
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

/// The text of an errno, without Rust's "(os error N)".
pub(crate) fn text(errno: i32) -> String {
    let full = io::Error::from_raw_os_error(errno).to_string();
    match full.find(" (os error") {
        Some(at) => full[..at].to_lowercase(),
        None => full,
    }
}

/// Turns "does not exist" into `None`.
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
    fn refused_requests_show_errno_and_extended_ack() {
        let error = Error::Refused {
            doing: "create veth eth0".into(),
            errno: libc::EEXIST,
            note: Some("name taken".into()),
        };
        assert_eq!(error.to_string(), "create veth eth0: file exists (kernel: name taken)");
        assert!(error.is_exists() && !error.is_gone());
    }
}
