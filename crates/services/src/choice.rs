//! Why an endpoint gets connections, or why it gets none.

use std::fmt;

/// The decision about one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Choice {
    /// It is ready.
    Ready,
    /// It is ready, and its hints name this node.
    SameNode,
    /// It is ready, and its hints name this node's zone.
    SameZone,
    /// It terminates and still serves, and no other endpoint is ready.
    LastResort,
    /// It is not ready.
    NotReady,
    /// It terminates and still serves, but others are ready.
    Terminating,
    /// It terminates and no longer serves.
    Ended,
    /// Hints assign it to other nodes.
    OtherNodes,
    /// Hints assign it to other zones.
    OtherZones,
    /// It is not on this node, and the traffic policy is `Local`.
    NotLocal,
}

impl Choice {
    /// Whether the endpoint gets connections.
    pub fn is_chosen(self) -> bool {
        match self {
            Choice::Ready | Choice::SameNode | Choice::SameZone | Choice::LastResort => true,
            Choice::NotReady
            | Choice::Terminating
            | Choice::Ended
            | Choice::OtherNodes
            | Choice::OtherZones
            | Choice::NotLocal => false,
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Choice::Ready => "ready",
            Choice::SameNode => "ready, and its hints name this node",
            Choice::SameZone => "ready, and its hints name the zone of this node",
            Choice::LastResort => "terminating but still serving, and no endpoint is ready",
            Choice::NotReady => "not ready",
            Choice::Terminating => "terminating, and other endpoints are ready",
            Choice::Ended => "terminating and no longer serving",
            Choice::OtherNodes => "its hints name other nodes",
            Choice::OtherZones => "its hints name other zones",
            Choice::NotLocal => "not on this node, and the traffic policy is Local",
        })
    }
}
