//! The failure of a command: the action, its cause and a hint. `main` prints it once.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::process::ExitCode;

use podwire_block_ipam::store::StoreError;
use serde_json::json;

use crate::output::Output;
use crate::paint::Paint;

/// A failed command.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// The action that failed: `cannot attach blue to pods`.
    pub what: String,
    /// The cause, with its CNI code.
    pub error: podwire_cni_spec::Error,
    /// The output of what succeeded before the failure.
    pub done: Option<Box<Output>>,
    /// The exit status.
    pub status: u8,
}

impl Failure {
    /// The action `what` failed because of `error`.
    pub fn new(what: impl Into<String>, error: podwire_cni_spec::Error) -> Failure {
        Failure { what: what.into(), error, done: None, status: 1 }
    }

    /// For `map_err`: adds the action `what` that failed to an error.
    pub fn context<E: Into<Cause>>(what: impl Into<String>) -> impl FnOnce(E) -> Failure {
        move |error| Failure::new(what, error.into().0)
    }

    /// The same failure, with the output of what succeeded before it.
    pub fn with_output(self, done: Output) -> Failure {
        Failure { done: Some(Box::new(done)), ..self }
    }

    /// The same failure, with another exit status: for a command whose status 1 is an answer.
    pub fn with_status(self, status: u8) -> Failure {
        Failure { status, ..self }
    }

    /// Prints it to standard error and returns the exit status.
    pub(crate) fn print(&self, json: bool) -> ExitCode {
        if let Some(done) = &self.done {
            done.print(json);
        }
        let text = if json {
            let mut object = self.error.to_json();
            object["what"] = json!(self.what);
            format!("{}\n", podwire_cni_spec::json::pretty(&object))
        } else {
            self.text(Paint::stderr(), is_root())
        };
        let _ = std::io::stderr().write_all(text.as_bytes());
        ExitCode::from(self.status)
    }

    fn text(&self, paint: Paint, root: bool) -> String {
        let Failure { what, error, .. } = self;
        let head = paint.bad("podwire:");
        let forbidden =
            ["Permission denied", "Operation not permitted"].iter().any(|text| error.msg.contains(text));
        if forbidden && !root {
            return format!("{head} {what}: this needs root (try sudo)\n");
        }
        let mut text = format!("{head} {what}\n  because: {}\n", error.msg);
        if !error.details.is_empty() {
            text += &format!("  hint: {}\n", error.details);
        }
        text
    }
}

/// The cause of a failure, as a CNI error.
#[derive(Debug)]
pub struct Cause(podwire_cni_spec::Error);

impl From<podwire_cni_spec::Error> for Cause {
    fn from(error: podwire_cni_spec::Error) -> Self {
        Cause(error)
    }
}

impl From<podwire_install::Error> for Cause {
    fn from(error: podwire_install::Error) -> Self {
        let code = match error {
            podwire_install::Error::File(_) => podwire_cni_spec::code::IO,
            _ => podwire_cni_spec::code::INVALID_CONFIG,
        };
        Cause(
            podwire_cni_spec::Error::new(code, error.to_string())
                .with_details(error.hint().unwrap_or_default()),
        )
    }
}

impl From<podwire_block_ipam::Error> for Cause {
    fn from(error: podwire_block_ipam::Error) -> Self {
        Cause(podwire_cni_spec::Error::internal(error.to_string()).with_details(error.hint()))
    }
}

impl From<StoreError> for Cause {
    fn from(error: StoreError) -> Self {
        podwire_block_ipam::Error::from(error).into()
    }
}

impl From<podwire_lab::Error> for Cause {
    fn from(error: podwire_lab::Error) -> Self {
        Cause(
            podwire_cni_spec::Error::new(podwire_cni_spec::code::INTERNAL, error.to_string())
                .with_details(error.hint()),
        )
    }
}

impl From<podwire_cni_runtime::Error> for Cause {
    fn from(error: podwire_cni_runtime::Error) -> Self {
        Cause(error.to_cni())
    }
}

impl From<podwire_sandbox::Error> for Cause {
    fn from(error: podwire_sandbox::Error) -> Self {
        Cause(error.to_cni())
    }
}

/// Whether this process runs as root: the owner of /proc/self.
fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_has_action_cause_and_hint() {
        let error = podwire_cni_spec::Error::new(11, "pool is full").with_details("add a range");
        let failure = Failure::new("cannot attach blue to pods", error);
        let text = "podwire: cannot attach blue to pods\n  because: pool is full\n  hint: add a range\n";
        assert_eq!(failure.text(Paint::plain(), true), text);
    }

    #[test]
    fn missing_rights_are_reported_in_one_line() {
        let error =
            podwire_cni_spec::Error::new(5, "write record /var/lib/cni/x: Permission denied (os error 13)");
        let failure = Failure::new("cannot attach blue to pods", error);
        let text = "podwire: cannot attach blue to pods: this needs root (try sudo)\n";
        assert_eq!(failure.text(Paint::plain(), false), text);
    }
}
