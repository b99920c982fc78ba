//! The runtime: where plugins are, where attachments are remembered, how long a plugin may take.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use podwire_cni_plugin::Registry;

use crate::Cache;

/// Attaches containers to networks by running plugins. Make one and keep it; it holds no open resource.
///
/// The spec's rules stay the caller's: no two calls for one container at the same time, and no GC while a
/// container of the same network is being attached or detached.
#[derive(Clone, Debug)]
pub struct Runtime<'p> {
    pub(crate) path: Vec<PathBuf>,
    pub(crate) vendors: Option<PathBuf>,
    pub(crate) cache: Cache,
    pub(crate) registry: Registry<'p>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) trace: Trace,
}

/// The trace that a call is part of. Plugins that know of traces add to it; what is empty here is inherited
/// from this process's environment.
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
    /// A runtime that looks for plugins in these folders, in this order, remembers attachments in
    /// `/var/lib/cni`, executes every plugin and waits for each as long as it takes.
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
    /// Remembers attachments in `folder` (its sub-folder `results`).
    pub fn cache_folder(self, folder: impl Into<PathBuf>) -> Self {
        Runtime { cache: Cache::new(folder), ..self }
    }

    /// Looks for a plugin that is in none of the folders in `<folder>/<type>/bin`, as kubelet did with `/opt`. That
    /// folder is then in the plugin's own `CNI_PATH` too.
    pub fn vendors(self, folder: impl Into<PathBuf>) -> Self {
        Runtime { vendors: Some(folder.into()), ..self }
    }

    /// Calls these plugins in this process when the file that would be executed is the program that holds them.
    pub fn registry<'r>(self, registry: Registry<'r>) -> Runtime<'r> {
        let Runtime { path, vendors, cache, timeout, trace, .. } = self;
        Runtime { path, vendors, cache, registry, timeout, trace }
    }

    /// How long ADD, CHECK, STATUS and VERSION may take in all, and each plugin of DEL, GC and of taking back a
    /// failed ADD: those go on past a slow plugin. A plugin that takes longer is asked to stop (SIGTERM), so that
    /// it can clean up, and killed five seconds later; so is whomever it has called. Plugins that are called in this
    /// process are not timed, but the programs that they call are.
    pub fn timeout(self, timeout: Duration) -> Self {
        Runtime { timeout: Some(timeout), ..self }
    }

    /// Hands this trace context to the plugins that are executed.
    pub fn trace(self, trace: Trace) -> Self {
        Runtime { trace, ..self }
    }

    /// What is remembered.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// When patience ends if it begins now.
    pub fn deadline(&self) -> Option<Instant> {
        self.timeout.and_then(|timeout| Instant::now().checked_add(timeout))
    }
}
