//! Every interleaving of some nodes that claim, assign, release and die, at every operation on the store.
//!
//! What is explored is the allocator itself, not a copy of it. A node's program runs against a store that answers from a log
//! (`stepwise.rs`); when the log is at its end, one more operation is done on the shared shelves, its answer is added to the log, and
//! the program is cut off. So a node is its log, the whole world is the shelves and all logs, and worlds that are alike are looked at
//! once (`explorer.rs`). `scenarios.rs` says who does what; `invariants.rs` says what must hold in every world, and at the end.

mod explorer;
mod invariants;
mod scenarios;
mod stepwise;
