//! Where ours deliberately differs from kube-proxy 1.35.
//!
//! A world of [`by_hand`](crate::by_hand) shows each difference, and the comparison requires it: if kube-proxy changes, its
//! row here is obsolete. Random worlds do not contain these cases.
//!
//! Differences that one state of the objects cannot show:
//!
//! - Two Services with the same external address and port: in kube-proxy either gets it, by the order of a Go map
//!   (kubernetes#69599). Ours gives it to the older Service and reports the other one.
//! - A comment of more than 128 bytes on an element fails every sync (kubernetes#139515). Ours is cut.
//! - UDP flows to a Service that was deleted, or whose last endpoint is gone, stay in kube-proxy (kubernetes#139628,
//!   kubernetes#141371). Ours end. The comparison deletes all flows between two worlds.
//! - A UDP flow with replies continues in kube-proxy when source ranges no longer admit its client. Ours ends, as one
//!   without replies does in both.
//! - An endpoint on this node whose slice names another node reaches itself with the node's address in kube-proxy 1.35, and
//!   not in 1.36 and ours: the slice is wrong.
//! - kube-proxy keeps a client at one endpoint for all frontends of a Service port, ours for each frontend: the comparison
//!   requires one endpoint at each frontend.

use crate::probes::{Probe, Seen};

/// A deliberate difference.
pub struct Difference {
    /// The world that shows it.
    pub world: &'static str,
    /// The words of the probes that differ.
    pub probes: &'static [&'static str],
    pub kube_proxy: &'static str,
    pub ours: &'static str,
    /// Why ours differs: printed where the difference is missing.
    pub reason: &'static str,
}

pub const DIFFERENCES: &[Difference] = &[Difference {
    world: "an address of a pod that is gone belongs to a new pod",
    probes: &["10.96.0.1:80"],
    kube_proxy: "refused",
    ours: "3 ",
    reason: "kube-proxy 1.35 takes the copy of an endpoint that is on this node, also if its pod is gone; 1.36 and ours \
             take the one that is not terminating",
}];

/// The deliberate difference of a probe.
pub fn of(world: &str, probe: &Probe) -> Option<&'static Difference> {
    let text = format!("{} {}", probe.client, probe.target);
    let is_of = |words: &[&str]| words.iter().all(|word| text.contains(word));
    DIFFERENCES.iter().find(|row| row.world == world && is_of(row.probes))
}

impl Difference {
    /// Whether both sides saw what this row says.
    pub fn holds(&self, ours: &Seen, theirs: &Seen) -> bool {
        let all = |seen: &Seen, text: &str| !seen.is_empty() && seen.iter().all(|one| one.starts_with(text));
        all(ours, self.ours) && all(theirs, self.kube_proxy)
    }
}
