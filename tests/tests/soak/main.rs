//! The soak: thousands of random operations of many runtimes at once, over every plugin, and nothing is left.
//!
//! Sixteen workers attach and detach pods, with and without failures, kill plugins, delete namespaces, and call CHECK
//! and GC. Meanwhile no address may belong to two attached pods, and operations on one pod may not affect another. In
//! the end, when all pods are gone, the node must be like one that never had any.
//!
//! A run prints its seed. `PODWIRE_SOAK_SEED` repeats the same choices (their outcome depends on the machine), and
//! `PODWIRE_SOAK_OPS` sets the number of operations.

mod call;
mod networks;
mod random;
mod spoil;
mod workbench;
mod worker;
mod world;

use podwire_tests::{is_whole, ours, GO};

/// The gate runs a tenth of the operations.
fn operations(whole: usize) -> usize {
    if is_whole() {
        whole
    } else {
        whole / 10
    }
}

#[test]
fn a_node_is_as_new_after_thousands_of_operations() {
    workbench::soak("a_node_is_as_new_after_thousands_of_operations", operations(5000), &[&ours()]);
}

/// ADD by one kind of plugins, DEL by the other. Go's are slower, so there are fewer operations.
#[test]
fn a_node_is_as_new_after_operations_of_both_kinds_of_plugins() {
    workbench::soak(
        "a_node_is_as_new_after_operations_of_both_kinds_of_plugins",
        operations(2000),
        &[&ours(), GO],
    );
}
