//! The fast path: eBPF programs that hand packets of accepted connections straight to pods and to other nodes.
//!
//! nftables decides, eBPF only accelerates:
//!
//! 1. The first packets of a connection take the normal path through bridge, routes, conntrack and nftables.
//! 2. When conntrack has seen traffic in both directions, a chain after all others (the table `podwire_fast_path`) marks the
//!    packet if its addresses and ports are not rewritten.
//! 3. The program at the egress of the pod's host end sees the mark. It learns the flow: the incoming device, addresses
//!    and ports, and where the packet went.
//! 4. For one second, the program at the ingress of the incoming device redirects packets of this flow to the learned
//!    device. Then a packet takes the normal path again, which nftables evaluates again and which
//!    refreshes timeouts.
//!
//! Everything else takes the normal path: first packets, FIN and RST, fragments, IP options, ICMP, rewritten connections,
//! pods with bandwidth limits. The incoming device is part of the flow, so no other pod can send its packets.
//!
//! The programs stay attached to the devices when the agent ends, and learn and forget as before. [`remove`] removes them.

#![forbid(unsafe_code)]

mod attach;
mod devices;
mod error;
mod handle;
mod programs;
mod reconciler;
mod rules;
mod status;
mod sysctls;

pub use attach::remove;
pub use error::{Error, Result};
pub use handle::FastPath;
pub use programs::Redirected;
pub use reconciler::PAUSE;
pub use rules::LEARN;
pub use status::Status;
