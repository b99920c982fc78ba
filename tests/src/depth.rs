//! How much of a sweep one run covers, and tables that report every failing row.
//!
//! `make test-all` sets `PODWIRE_TEST_ALL`: sweeps are whole, and peers that must be built from Go modules take part.
//! `make test`, the gate, covers every n-th point of a sweep, other points in each run. `PODWIRE_TEST_SEED` chooses
//! them; `scripts/test` prints it.

use std::any::Any;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// Whether this run covers everything (`make test-all`).
pub fn is_whole() -> bool {
    std::env::var_os("PODWIRE_TEST_ALL").is_some()
}

/// The seed of this run.
pub fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| match std::env::var("PODWIRE_TEST_SEED") {
        Ok(text) => text.parse().expect("PODWIRE_TEST_SEED is a number"),
        Err(_) => SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
    })
}

/// Every `n`-th point of a sweep, or all of them in a whole run. `sweep` names the sweep, so that sweeps of one run
/// start at different points.
pub fn sample<T>(sweep: &str, points: Vec<T>, n: usize) -> Vec<T> {
    if is_whole() {
        return points;
    }
    let mut hasher = DefaultHasher::new();
    (sweep, seed()).hash(&mut hasher);
    let first = hasher.finish() as usize % n.min(points.len()).max(1);
    println!("{sweep}: every {n}th of {} points from {first}, seed {}", points.len(), seed());
    points.into_iter().skip(first).step_by(n).collect()
}

/// Checks every row of a table, and panics at the end with the name and the message of each row that failed.
pub fn check_rows<R>(rows: impl IntoIterator<Item = R>, name: impl Fn(&R) -> String, check: impl Fn(R)) {
    let mut failures = Vec::new();
    let mut count = 0;
    for row in rows {
        count += 1;
        let name = name(&row);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(row))) {
            failures.push(format!("{name}: {}", message(&*panic)));
        }
    }
    assert!(failures.is_empty(), "{} of {count} rows failed:\n{}", failures.len(), failures.join("\n"));
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failing_row_is_reported() {
        let check =
            || check_rows([1, 2, 3], |row| format!("row {row}"), |row| assert!(row == 2, "it is odd"));
        let panic = catch_unwind(check).unwrap_err();
        assert_eq!(message(&*panic), "2 of 3 rows failed:\nrow 1: it is odd\nrow 3: it is odd");
    }

    #[test]
    fn a_sample_is_never_empty() {
        for len in 1..20 {
            assert!(!sample("test", (0..len).collect(), 8).is_empty());
        }
    }
}
