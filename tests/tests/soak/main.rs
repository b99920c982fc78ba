//! The soak: thousands of random operations of many runtimes at once, with all plugins, leave nothing behind.
//!
//! Sixteen workers attach and detach pods, with and without failures, kill plugins, delete namespaces, and call CHECK
//! and GC. Meanwhile no address may belong to two attached pods, and operations on one pod may not affect another. At
//! the end, when all pods are removed, the node must be as before.
//!
//! A run prints its seed. `PODWIRE_SOAK_SEED` repeats the same choices (their outcome depends on the machine), and
//! `PODWIRE_SOAK_OPS` sets the number of operations.

mod add_failure;
mod call;
mod networks;
mod random;
mod workbench;
mod worker;
mod world;

use podwire_tests::{is_whole, ours, GO};

/// The number of operations: `make test` runs a tenth of them.
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

/// Podwire's and Go's plugins delete what the others added. Go's are slower, so there are fewer operations.
#[test]
fn a_node_is_as_new_after_operations_of_both_kinds_of_plugins() {
    workbench::soak(
        "a_node_is_as_new_after_operations_of_both_kinds_of_plugins",
        operations(2000),
        &[&ours(), GO],
    );
}
