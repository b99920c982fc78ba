//! Colours for terminals; disabled by `NO_COLOR`.

use std::io::IsTerminal;

/// Adds colour codes to text, if enabled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paint {
    on: bool,
}

impl Paint {
    /// For standard output.
    pub(crate) fn stdout() -> Paint {
        Paint { on: std::io::stdout().is_terminal() && wanted() }
    }

    /// For standard error.
    pub(crate) fn stderr() -> Paint {
        Paint { on: std::io::stderr().is_terminal() && wanted() }
    }

    /// No colour.
    #[cfg(test)]
    pub(crate) fn plain() -> Paint {
        Paint { on: false }
    }

    /// Green.
    pub(crate) fn good(self, text: &str) -> String {
        self.wrap("32", text)
    }

    /// Red.
    pub(crate) fn bad(self, text: &str) -> String {
        self.wrap("31", text)
    }

    /// Bold.
    pub(crate) fn head(self, text: &str) -> String {
        self.wrap("1", text)
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.on && !text.is_empty() {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

/// <https://no-color.org>: any value of NO_COLOR that is not empty disables colours.
fn wanted() -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    !is_set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}
