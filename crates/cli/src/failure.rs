//! What failed, because of what, and what to do next: printed once, by the program's last line.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::process::ExitCode;

use serde_json::json;

use crate::paint::Paint;
use crate::Answer;

/// A command that could not do what it was asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// What could not be done.
    pub what: String,
    /// The cause, with its CNI code.
    pub error: podwire_cni_spec::Error,
    /// What was done all the same.
    pub done: Option<Box<Answer>>,
}

impl Failure {
    /// `what` could not be done because of `error`.
    pub fn new(what: impl Into<String>, error: podwire_cni_spec::Error) -> Failure {
        Failure { what: what.into(), error, done: None }
    }

    /// For `map_err`: `what` could not be done.
    pub fn to<E: Into<Cause>>(what: impl Into<String>) -> impl FnOnce(E) -> Failure {
        move |error| Failure::new(what, error.into().0)
    }

    /// The same failure of a command that did something all the same.
    pub fn after(self, done: Answer) -> Failure {
        Failure { done: Some(Box::new(done)), ..self }
    }

    /// Prints it to standard error and returns the exit status.
    pub(crate) fn print(&self, json: bool) -> ExitCode {
        if let Some(done) = &self.done {
            done.print(json);
        }
        let text = match json {
            true => {
                let mut object = self.error.to_json();
                object["what"] = json!(self.what);
                format!("{}\n", podwire_cni_spec::json::pretty(&object))
            }
            false => self.text(Paint::stderr(), is_root()),
        };
        let _ = std::io::stderr().write_all(text.as_bytes());
        ExitCode::FAILURE
    }

    fn text(&self, paint: Paint, root: bool) -> String {
        let Failure { what, error, .. } = self;
        let head = paint.bad("podwire:");
        let forbidden =
            ["Permission denied", "Operation not permitted"].iter().any(|text| error.msg.contains(text));
        if forbidden && !root {
            return format!("{head} {what}: root is needed (try sudo)\n");
        }
        let mut text = format!("{head} {what}\n  because: {}\n", error.msg);
        if !error.details.is_empty() {
            text += &format!("  hint: {}\n", error.details);
        }
        text
    }
}

/// Anything that can be the cause of a failure.
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

/// Whether this process is root's, as the owner of its own folder under /proc tells.
fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_what_why_and_what_next() {
        let error = podwire_cni_spec::Error::new(11, "pool is full").with_details("add a range");
        let failure = Failure::new("cannot attach blue to pods", error);
        let text = "podwire: cannot attach blue to pods\n  because: pool is full\n  hint: add a range\n";
        assert_eq!(failure.text(Paint::plain(), true), text);
    }

    #[test]
    fn without_root_one_line_is_enough() {
        let error =
            podwire_cni_spec::Error::new(5, "write record /var/lib/cni/x: Permission denied (os error 13)");
        let failure = Failure::new("cannot attach blue to pods", error);
        let text = "podwire: cannot attach blue to pods: root is needed (try sudo)\n";
        assert_eq!(failure.text(Paint::plain(), false), text);
    }
}
