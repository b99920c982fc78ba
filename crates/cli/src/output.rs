//! The output of a command.

use std::io::Write;
use std::process::ExitCode;

use serde_json::Value;

/// The output of a command, for people and for programs.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// Text for people, in whole lines.
    pub text: String,
    /// The same as JSON.
    pub json: Value,
    /// Whether the exit status is 0.
    pub success: bool,
}

impl Output {
    /// The output of a command that succeeded.
    pub fn new(text: impl Into<String>, json: Value) -> Output {
        Output { text: text.into(), json, success: true }
    }

    /// Prints the output and returns the exit status. A closed standard output (`| head`) is not an error.
    pub(crate) fn print(&self, json: bool) -> ExitCode {
        let text = if !json {
            self.text.clone()
        } else if self.json.is_null() {
            String::new()
        } else {
            format!("{}\n", podwire_cni_spec::json::pretty(&self.json))
        };
        let _ = std::io::stdout().write_all(text.as_bytes());
        ExitCode::from(u8::from(!self.success))
    }
}
