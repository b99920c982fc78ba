//! The verbs of the spec.

/// A verb of the spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Command {
    Add,
    Del,
    Check,
    Gc,
    Status,
    Version,
}

impl Command {
    /// All of them.
    pub const ALL: [Command; 6] =
        [Command::Add, Command::Del, Command::Check, Command::Gc, Command::Status, Command::Version];

    /// As in `CNI_COMMAND`.
    pub fn as_str(self) -> &'static str {
        match self {
            Command::Add => "ADD",
            Command::Del => "DEL",
            Command::Check => "CHECK",
            Command::Gc => "GC",
            Command::Status => "STATUS",
            Command::Version => "VERSION",
        }
    }

    /// Reads `CNI_COMMAND`.
    pub fn parse(text: &str) -> Option<Command> {
        Command::ALL.into_iter().find(|command| command.as_str() == text)
    }
}
