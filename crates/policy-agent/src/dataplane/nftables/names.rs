//! The tables, and the chains and sets that several builders use.

use podwire_netlink::nft::{Family, Table};
use podwire_policy::Direction;

/// The table with the policy rules, and with the source checks of routed pods.
pub const POLICY_TABLE: Table = Table::named(Family::Inet, "podwire_policy");
/// The table with the source checks of bridge ports.
pub(in crate::dataplane) const BRIDGE_TABLE: Table = Table::named(Family::Bridge, "podwire_policy");

/// Two chains, and the maps in them from a pod's address to the pod's chain.
pub(super) const EGRESS: &str = "egress";
pub(super) const INGRESS: &str = "ingress";
/// Each pod address twice, as source and destination: packets from a pod to itself.
pub(super) const POD_TO_ITSELF: &str = "itself";
/// Networks that contain only pod addresses.
pub(super) const POD_NETWORKS: &str = "pod_networks";

/// The UDP ports of the node to which no pod can send.
pub(super) const GUARDED_PORTS: &str = "guarded_ports";

pub(super) const DIRECTIONS: [Direction; 2] = [Direction::Egress, Direction::Ingress];

/// The sets that count dropped packets by pod.
pub(super) fn drops_by_pod(direction: Direction) -> &'static str {
    match direction {
        Direction::Egress => "dropped_egress",
        Direction::Ingress => "dropped_ingress",
    }
}
