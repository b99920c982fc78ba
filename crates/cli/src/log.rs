//! The log of a daemon, on standard error.

use std::io::Write;

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

/// For whom it is.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Text,
    /// For programs.
    Json,
}

impl Format {
    /// From here on everything is logged; how much, RUST_LOG says.
    pub(crate) fn start(self) {
        // The clients of servers log what they also answer, and that is told with what was being done.
        let filter = EnvFilter::try_from_default_env()
            .unwrap_or_else(|_| EnvFilter::new("info,kube=off,tower=warn,hyper=warn"));
        let log = tracing_subscriber::fmt().with_env_filter(filter).with_target(false);
        // Whoever reads the log may have gone: that is no reason to end.
        let quiet = || -> Box<dyn Write> { Box::new(std::io::stderr()) };
        let set = match self {
            Format::Text => log.with_ansi(false).with_writer(quiet).try_init(),
            Format::Json => log.json().with_writer(quiet).try_init(),
        };
        drop(set);
    }
}
