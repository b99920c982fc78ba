//! The log of daemons, on standard error.

use std::io::Write;

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

/// The format of log lines.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Format {
    /// Text, for people.
    Text,
    /// JSON, for programs.
    Json,
}

impl Format {
    /// Starts logging, with the filter of RUST_LOG.
    pub(crate) fn start(self) {
        // The client libraries log errors that they also return. The caller logs those with more context.
        let filter = EnvFilter::try_from_default_env()
            .unwrap_or_else(|_| EnvFilter::new("info,kube=off,tower=warn,hyper=warn"));
        let log = tracing_subscriber::fmt().with_env_filter(filter).with_target(false);
        // A closed standard error must not end the daemon, so write errors are ignored.
        let stderr = || -> Box<dyn Write> { Box::new(std::io::stderr()) };
        let set = match self {
            Format::Text => log.with_ansi(false).with_writer(stderr).try_init(),
            Format::Json => log.json().with_writer(stderr).try_init(),
        };
        drop(set);
    }
}
