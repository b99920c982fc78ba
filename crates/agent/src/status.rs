//! The agent's [`Status`], shared by its threads and read by HTTP and metrics.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use podwire_agent_ipc::status::{Mode, Status, StoreStatus};
use tracing::{info, warn};

/// Fills a part of the status when it is read.
type Source = Box<dyn Fn(&mut Status) + Send + Sync>;

/// The status of this agent.
#[derive(Clone)]
pub(crate) struct StatusHandle(Arc<Shared>);

struct Shared {
    status: Mutex<Status>,
    sources: Mutex<Vec<Source>>,
}

impl StatusHandle {
    pub(crate) fn new(node: &str, mode: Mode) -> StatusHandle {
        let store = StoreStatus { synced: false, detail: "waiting for the first answer".into() };
        let status = Mutex::new(Status { node: node.into(), mode, store, ..Status::default() });
        StatusHandle(Arc::new(Shared { status, sources: Mutex::default() }))
    }

    /// From now on `source` fills its part of the status at each read.
    pub(crate) fn add_source(&self, source: impl Fn(&mut Status) + Send + Sync + 'static) {
        self.0.sources.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(source));
    }

    /// The status without what sources fill in.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Status> {
        self.0.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The whole status.
    pub(crate) fn read(&self) -> Status {
        let mut status = self.lock().clone();
        let sources = self.0.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.iter().for_each(|source| source(&mut status));
        status
    }

    /// Sets or clears the problem of a component, and logs a change.
    pub(crate) fn set_problem(&self, component: &str, problem: Option<String>) {
        let prefix = format!("{component}: ");
        let text = problem.as_ref().map(|problem| format!("{prefix}{problem}"));
        let mut status = self.lock();
        let before = status.problems.iter().position(|one| one.starts_with(&prefix));
        let before = before.map(|at| status.problems.remove(at));
        status.problems.extend(text.clone());
        status.problems.sort();
        match problem {
            Some(problem) if before != text => warn!(component, "{problem}"),
            None if before.is_some() => info!(component, "problem resolved"),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_component_has_one_problem_and_sources_fill_their_part() {
        let handle = StatusHandle::new("n1", Mode::Calico);
        handle.set_problem("store", Some("refused".into()));
        handle.set_problem("BGP", Some("no bird".into()));
        handle.set_problem("store", Some("timeout".into()));
        handle.add_source(|status| status.mtu = 1450);
        assert_eq!(handle.read().problems, ["BGP: no bird", "store: timeout"]);
        assert_eq!((handle.read().mtu, handle.lock().mtu), (1450, 0));
        handle.set_problem("store", None);
        assert_eq!(handle.read().problems, ["BGP: no bird"]);
    }
}
