//! CHECK and repair, the part that all plugins with an interface share: compare a pod's interface and what belongs to
//! it on the node with what was recorded at ADD, and return each difference as a
//! [`Finding`](podwire_cni_plugin::Finding) with its repair.

mod interface;
mod node;
mod repair;

pub use interface::{pod_interface, recorded_interface};
pub use node::{forwarding, is_ours, is_up, mtu, node_routes, other_end, rules, sysctl, VethEnds};
pub use repair::{change, change_node, on_node};
