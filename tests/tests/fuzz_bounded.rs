//! The fuzz targets (`make fuzz`) with deterministic mutations of the committed seeds. It needs no nightly compiler and
//! takes a few seconds.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;

use bodies::{mutation, TARGETS};
use podwire_tests::{is_whole, project, seed};

const MUTATIONS: u64 = 20_000;
/// `make test` runs this many of them, others in each run.
const PART: u64 = 2_000;

fn mutations() -> std::ops::Range<u64> {
    if is_whole() {
        return 0..MUTATIONS;
    }
    let first = seed() % (MUTATIONS / PART) * PART;
    first..first + PART
}

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = project(&format!("fuzz/seeds/{target}"));
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).expect("seeds").map(|entry| entry.expect("a seed").path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).expect("a seed")).collect()
}

/// Runs a target with an input. If it fails, writes the input to a file for `cargo fuzz run`.
fn survives(target: &str, number: u64, input: &[u8]) {
    let (_, body) = TARGETS.iter().find(|(name, _)| *name == target).expect("a target");
    if catch_unwind(AssertUnwindSafe(|| body(input))).is_err() {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{target}-{number}"));
        std::fs::write(&file, input).expect("a file");
        panic!(
            "mutation {number}: {}\ncargo +nightly fuzz run {target} {}",
            input.escape_ascii(),
            file.display()
        );
    }
}

fn bounded(target: &str) {
    let seeds = corpus(target);
    for (n, seed) in seeds.iter().enumerate() {
        survives(target, n as u64, seed);
    }
    for number in mutations() {
        survives(target, number, &mutation::mutate(&seeds, number));
    }
}

#[test]
fn every_target_has_a_program_seeds_and_a_test() {
    let names: Vec<_> = TARGETS.iter().map(|(name, _)| name.to_string()).collect();
    for (folder, ending) in [("fuzz/seeds", ""), ("fuzz/fuzz_targets", ".rs")] {
        let entries = std::fs::read_dir(project(folder)).unwrap();
        let mut found: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap().replace(ending, ""))
            .collect();
        found.sort();
        assert_eq!(found, names, "{folder}");
    }
    let tested = ["args", "conditions", "config", "host_local", "netlink", "result"];
    assert_eq!(names, tested);
}

#[test]
fn arguments_survive_mutations() {
    bounded("args");
}

#[test]
fn conditions_survive_mutations() {
    bounded("conditions");
}

#[test]
fn configs_survive_mutations() {
    bounded("config");
}

#[test]
fn ranges_survive_mutations() {
    bounded("host_local");
}

#[test]
fn the_kernels_answers_survive_mutations() {
    bounded("netlink");
}

#[test]
fn results_survive_mutations() {
    bounded("result");
}
