//! The fast path of the node: starts it, or removes it.

use std::collections::BTreeMap;

use podwire_agent_ipc::status::FastPathStatus;
use podwire_fast_path::FastPath;
use podwire_kernel::Host;
use tracing::{info, warn};

use crate::status::StatusHandle;

/// The number of pod interfaces on the normal path that the status lists.
const MAX_LISTED: usize = 20;

/// Whether connections may take the fast path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FastPathMode {
    /// If the kernel can.
    #[default]
    On,
    /// Never; what an earlier agent has set up is removed.
    Off,
}

/// Starts the fast path. Without it everything works, so a failure only shows in log and status.
pub(crate) fn start(mode: FastPathMode, status: &StatusHandle) -> Option<FastPath> {
    let reason = match mode {
        FastPathMode::Off => "turned off by --fast-path=off".to_owned(),
        FastPathMode::On => match FastPath::start(podwire_fast_path::PAUSE) {
            Ok(fast_path) => {
                let shown = fast_path.clone();
                status.add_source(move |status| status.fast_path = Some(of(shown.status())));
                return Some(fast_path);
            }
            Err(error) => {
                warn!(%error, "fast path is off; packets take the normal path");
                error.to_string()
            }
        },
    };
    remove();
    let off = FastPathStatus { reason: Some(reason), ..FastPathStatus::default() };
    status.add_source(move |status| status.fast_path = Some(off.clone()));
    None
}

/// Removes the fast path of an earlier agent.
pub(crate) fn remove() {
    match Host::here().map_err(Into::into).and_then(|mut host| podwire_fast_path::remove(&mut host)) {
        Ok(removed) => removed.iter().for_each(|removed| info!(removed, "fast path removed")),
        Err(error) => warn!(%error, "the fast path of an earlier agent cannot be removed"),
    }
}

fn of(status: podwire_fast_path::Status) -> FastPathStatus {
    let podwire_fast_path::Status { on, reason, fast, normal, uplinks, to_pods, to_nodes } = status;
    let count = normal.len();
    let normal_pods: BTreeMap<String, String> = normal.into_iter().take(MAX_LISTED).collect();
    FastPathStatus {
        on,
        reason,
        pods: fast.len(),
        uplinks,
        normal_pods,
        normal_pod_count: count,
        packets: to_pods.packets + to_nodes.packets,
        bytes: to_pods.bytes + to_nodes.bytes,
    }
}
