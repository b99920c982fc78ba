//! Checks every interleaving of several nodes that claim, assign, release and die, at every operation on the store.
//!
//! The explored code is the allocator itself. A node's program runs against a store that answers from a log
//! (`stepwise.rs`). At the end of the log, one more operation is done on the shared state, its response is appended to
//! the log, and the program is aborted. So a node is determined by its log, a world by the shared state and all logs,
//! and equal worlds are examined once (`explorer.rs`). `scenarios.rs` has the programs; `invariants.rs` has what must
//! hold in every world, and at the end.

mod explorer;
mod invariants;
mod scenarios;
mod stepwise;
