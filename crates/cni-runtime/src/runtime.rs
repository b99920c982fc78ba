//! The runtime's settings: plugin directories, cache, timeout, trace context.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use podwire_cni_plugin::Registry;

use crate::Cache;

/// Attaches containers to networks by running plugins. It holds no open resource.
///
/// The caller must follow the spec's rules: no two concurrent calls for one container, and no GC while a container of the same
/// network is being attached or detached.
#[derive(Clone, Debug)]
pub struct Runtime<'p> {
    pub(crate) path: Vec<PathBuf>,
    pub(crate) vendors: Option<PathBuf>,
    pub(crate) cache: Cache,
    pub(crate) registry: Registry<'p>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) trace: Trace,
}

/// The trace context of a call. Empty fields are inherited from this process's environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// W3C `traceparent`, passed on as `TRACEPARENT`.
    pub parent: String,
    /// W3C `tracestate`, passed on as `TRACESTATE`.
    pub state: String,
    /// W3C `baggage`, passed on as `BAGGAGE`.
    pub baggage: String,
}

impl Runtime<'static> {
    /// A runtime that searches plugins in these directories, keeps its records in `/var/lib/cni`, executes every plugin and has
    /// no timeout.
    pub fn new<P: Into<PathBuf>>(path: impl IntoIterator<Item = P>) -> Runtime<'static> {
        Runtime {
            path: path.into_iter().map(Into::into).collect(),
            vendors: None,
            cache: Cache::default(),
            registry: Registry::none(),
            timeout: None,
            trace: Trace::default(),
        }
    }
}

impl<'p> Runtime<'p> {
    /// Keeps the records in `folder` (its subdirectory `results`).
    pub fn cache_folder(self, folder: impl Into<PathBuf>) -> Self {
        Runtime { cache: Cache::new(folder), ..self }
    }

    /// Searches a plugin that is in none of the directories in `<folder>/<type>/bin`, as kubelet did with `/opt`. That directory
    /// is then part of the plugin's `CNI_PATH`.
    pub fn vendors(self, folder: impl Into<PathBuf>) -> Self {
        Runtime { vendors: Some(folder.into()), ..self }
    }

    /// Calls these plugins in this process if the file to be executed is the program that contains them.
    pub fn registry<'r>(self, registry: Registry<'r>) -> Runtime<'r> {
        let Runtime { path, vendors, cache, timeout, trace, .. } = self;
        Runtime { path, vendors, cache, registry, timeout, trace }
    }

    /// The time limit for ADD, CHECK, STATUS and VERSION in total, and for each plugin of DEL, GC and the cleanup of a failed
    /// ADD, which go on past a slow plugin. A plugin that takes longer gets SIGTERM, so that it can clean up, and SIGKILL five
    /// seconds later, together with the processes that it started. In-process plugins are not stopped, but the programs that
    /// they execute are.
    pub fn timeout(self, timeout: Duration) -> Self {
        Runtime { timeout: Some(timeout), ..self }
    }

    /// Passes this trace context to executed plugins.
    pub fn trace(self, trace: Trace) -> Self {
        Runtime { trace, ..self }
    }

    /// The records.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// The deadline of a call that starts now.
    pub fn deadline(&self) -> Option<Instant> {
        self.timeout.and_then(|timeout| Instant::now().checked_add(timeout))
    }
}
