//! What a command has to say.

use std::io::Write;
use std::process::ExitCode;

use serde_json::Value;

/// What a command found or did, for people and for programs.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// For people: whole lines.
    pub text: String,
    /// For programs.
    pub json: Value,
    /// Whether all is well: the exit status.
    pub success: bool,
}

impl Answer {
    /// All is well.
    pub fn new(text: impl Into<String>, json: Value) -> Answer {
        Answer { text: text.into(), json, success: true }
    }

    /// Prints it, and returns the exit status. A reader that has gone away (`| head`) is no error.
    pub(crate) fn print(&self, json: bool) -> ExitCode {
        let text = match json {
            true if self.json.is_null() => String::new(),
            true => format!("{}\n", podwire_cni_spec::json::pretty(&self.json)),
            false => self.text.clone(),
        };
        let _ = std::io::stdout().write_all(text.as_bytes());
        ExitCode::from(u8::from(!self.success))
    }
}
