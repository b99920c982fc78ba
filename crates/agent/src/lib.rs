//! The agent of a node.
//!
//! It learns who the other nodes are (a [`podwire_subnets::Source`]), asks for a range of addresses that no other node has, opens the
//! roads to all of them ([`podwire_overlay`]), and only then says that pods may come: by `subnet.env`, and by a list of plugins in
//! the runtime's folder, written last.
//!
//! ```text
//! source ──generations──▶ life ──plans──▶ roads (a thread) ──▶ kernel
//!                          ▲                  │  ▲
//!                          └──── reports ─────┘  └── notices: something of ours was touched
//!                          │
//!                          ├──▶ announcement: subnet.env, then the conflist, or what STATUS of its plugins says
//!                          └──▶ status: /healthz /readyz /status /metrics
//! ```
//!
//! Nothing here is on the way of a packet. The agent may be killed, and the source may be away: what was opened stays open,
//! and whoever comes back compares the whole and mends what differs. That is also what happens after a notice of the kernel,
//! and every half minute in case one was missed.

#![forbid(unsafe_code)]

mod announcement;
mod backend;
mod calls;
mod error;
mod extension;
mod http;
mod life;
mod metrics;
mod plan;
mod policies;
mod pool;
mod rivals;
mod roads;
pub mod routed;
mod settings;
mod status;

pub use announcement::{Chain, Conflist, NotReady};
pub use error::{Error, Result};
pub use life::{retire, run};
pub use settings::Settings;
pub use status::{Phase, Status};
