//! Errors of API server clients, as texts that name the cause.

use std::fmt;

use kube::runtime::watcher;

const NOT_FOUND: u16 = 404;

/// The result of a request to the API server.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A request that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The request, for example `get node n1`.
    pub doing: String,
    /// The answer of the server or the kernel.
    pub why: String,
}

impl Error {
    /// For `map_err`: names the request, and describes the client's error.
    pub fn while_doing(doing: impl ToString) -> impl FnOnce(kube::Error) -> Error {
        let doing = doing.to_string();
        move |error| Error { doing, why: describe(&error) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kubernetes: {}: {}", self.doing, self.why)
    }
}

impl std::error::Error for Error {}

/// The API server's own message if there is one, because it names the object and the user; otherwise the whole chain of
/// causes.
pub fn describe(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => format!("{} ({})", status.message, status.code),
        other => error_chain(other),
    }
}

/// The text of an error and of all its causes, without repetition. Client libraries wrap the kernel's "Connection
/// refused" in three layers and print only the outermost.
pub fn error_chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

/// Whether a watch failed because the server does not have the kind. A server cannot announce a kind that is defined
/// later, so its watcher tries again after a pause.
pub fn is_missing_kind(error: &watcher::Error) -> bool {
    let (watcher::Error::InitialListFailed(source) | watcher::Error::WatchStartFailed(source)) = error else {
        return false;
    };
    matches!(source, kube::Error::Api(status) if status.code == NOT_FOUND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_is_named_once() {
        #[derive(Debug)]
        struct Outer(std::io::Error);
        impl fmt::Display for Outer {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("transport error")
            }
        }
        impl std::error::Error for Outer {
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                Some(&self.0)
            }
        }
        let refused = std::io::Error::from_raw_os_error(111);
        assert_eq!(error_chain(&Outer(refused)), "transport error: Connection refused (os error 111)");
    }
}
