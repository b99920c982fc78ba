//! The failure of a command: the action, its cause and a hint. `main` prints it once.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use podwire_block_ipam::store::StoreError;
use serde_json::json;

use crate::container_ids::shorten;
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

    /// For `map_err`: the action `what` failed because `path` cannot be read.
    pub(crate) fn reading<'a>(what: &'a str, path: &'a Path) -> impl FnOnce(std::io::Error) -> Failure + 'a {
        let code = podwire_cni_spec::code::IO;
        move |error| {
            Failure::new(
                what,
                podwire_cni_spec::Error::new(code, format!("read {}: {error}", path.display())),
            )
        }
    }

    /// The same failure, with the output of what succeeded before it.
    pub fn with_output(self, done: Output) -> Failure {
        Failure { done: Some(Box::new(done)), ..self }
    }

    /// The same failure with other texts for people: `map` changes each.
    pub(crate) fn map_texts(mut self, map: impl Fn(&str) -> String) -> Failure {
        let podwire_cni_spec::Error { msg, details, hint, .. } = &mut self.error;
        for text in [&mut self.what, msg, details, hint] {
            *text = map(text);
        }
        self.done.iter_mut().for_each(|done| done.text = map(&done.text));
        self
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
        // Callers that know the pods have named them.
        let Failure { what, error, .. } = self.clone().map_texts(|text| shorten(text, |_| None));
        let head = paint.bad("podwire:");
        let forbidden =
            ["Permission denied", "Operation not permitted"].iter().any(|text| error.msg.contains(text));
        if forbidden && !root {
            return format!("{head} {what}: this needs root (try sudo)\n");
        }
        let mut text = format!("{head} {what}\n  because: {}\n", error.msg);
        let hints = [&error.details, &error.hint].into_iter().filter(|hint| !hint.is_empty());
        hints.for_each(|hint| text += &format!("  hint: {hint}\n"));
        text
    }
}

/// Prints what clap found wrong with the command line, or the help that was asked for, and returns the exit status.
pub(crate) fn print_usage(error: &clap::Error, json: bool) -> ExitCode {
    if json && error.use_stderr() {
        let usage = usage_error(&error.render().to_string());
        let _ = Failure::new("cannot read the command line", usage).print(true);
    } else {
        let _ = error.print();
    }
    ExitCode::from(error.exit_code().clamp(0, 255) as u8)
}

/// clap's text as an error: the first line, and what follows as details.
fn usage_error(text: &str) -> podwire_cni_spec::Error {
    let mut paragraphs = text.split("\n\n").map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "));
    let first = paragraphs.next().unwrap_or_default();
    let details: Vec<String> = paragraphs.filter(|text| !text.is_empty()).collect();
    let msg = first.strip_prefix("error: ").unwrap_or(&first);
    podwire_cni_spec::Error::env(msg).with_details(details.join("; "))
}

/// The cause of a failure, as a CNI error.
#[derive(Debug)]
pub struct Cause(podwire_cni_spec::Error);

impl Cause {
    /// The error as JSON.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        self.0.to_json()
    }
}

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

/// Whether this process runs as root.
fn is_root() -> bool {
    podwire_netlink::sys::user_id() == 0
}

/// Fails without root. Records, ledger and other processes' namespaces are hidden from other users, so that a command which
/// reads them would say that there are none.
pub(crate) fn require_root(command: &str) -> Result<(), Failure> {
    if is_root() {
        return Ok(());
    }
    let error = podwire_cni_spec::Error::new(podwire_cni_spec::code::IO, "Operation not permitted");
    Err(Failure::new(format!("cannot run {command}"), error.with_details("this needs root")))
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
    fn a_usage_error_has_its_parts() {
        let text = "error: unrecognized subcommand 'ad'\n\n  tip: a similar subcommand exists: 'add'\n\n\
                    Usage: podwire cni <COMMAND>\n\nFor more information, try '--help'.\n";
        let error = usage_error(text);
        assert_eq!((error.code, error.msg.as_str()), (4, "unrecognized subcommand 'ad'"));
        let details = "tip: a similar subcommand exists: 'add'; Usage: podwire cni <COMMAND>; \
                       For more information, try '--help'.";
        assert_eq!(error.details, details);
    }

    #[test]
    fn a_hint_beside_a_text_of_the_go_plugins_is_shown() {
        let error = podwire_cni_spec::Error::new(7, "no IP ranges specified").with_hint("set ipam.subnet");
        let text = Failure::new("cannot attach blue to pods", error).text(Paint::plain(), true);
        assert!(text.ends_with("  because: no IP ranges specified\n  hint: set ipam.subnet\n"), "{text}");
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
