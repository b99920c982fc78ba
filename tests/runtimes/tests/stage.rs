//! The harness itself: a stage ends with its test, however the test ends.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use podwire_runtime_tests::{Containerd, Plugins, PodSpec, Stage};

/// Set for the test process that will be killed.
const VICTIM: &str = "PODWIRE_TEST_TO_BE_KILLED";
const NAME: &str = "a_test_that_is_killed_leaves_neither_processes_nor_cgroups";

/// Starts a pod, prints the PID of the stage's first process, and waits.
fn victim() {
    let containerd = Containerd::start(Stage::new(Plugins::Ours));
    containerd.cri().run(&PodSpec::named("pod"));
    println!("\nholding {}", containerd.pid());
    std::thread::sleep(Duration::from_secs(600));
}

/// All processes of the machine in these cgroups.
fn members(groups: &[String]) -> Vec<String> {
    let of = |group: &String| {
        let found =
            Command::new("find").args([group, "-name", "cgroup.procs", "-exec", "cat", "{}", "+"]).output();
        String::from_utf8_lossy(&found.expect("find").stdout).lines().map(String::from).collect::<Vec<_>>()
    };
    groups.iter().flat_map(of).collect()
}

/// The stage's cgroups, found through one of its processes.
fn groups(pid: &str) -> Vec<String> {
    let joined = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("its cgroups");
    let name =
        joined.lines().find_map(|line| line.rsplit('/').find(|part| part.starts_with("podwire-stage-")));
    let name = name.unwrap_or_else(|| panic!("no cgroup of a stage: {joined}"));
    let found = Command::new("find").args(["/sys/fs/cgroup", "-maxdepth", "2", "-name", name]).output();
    String::from_utf8_lossy(&found.expect("find").stdout).lines().map(String::from).collect()
}

#[test]
fn a_test_that_is_killed_leaves_neither_processes_nor_cgroups() {
    if std::env::var_os(VICTIM).is_some() {
        return victim();
    }
    let program = std::env::current_exe().expect("this program");
    let mut test = Command::new(program);
    test.args(["--exact", NAME, "--nocapture"])
        .env(VICTIM, "yes")
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut test = test.spawn().expect("this program again");
    let mut lines = BufReader::new(test.stdout.take().expect("stdout")).lines().map_while(Result::ok);
    let pid = lines.find_map(|line| line.strip_prefix("holding ").map(String::from)).expect("a stage");
    let groups = groups(&pid);
    assert!(!groups.is_empty());
    // The first process of the stage is in its group, and the pod's processes are in groups below.
    let processes = members(&groups);
    assert!(processes.len() > 2, "{groups:?}: {processes:?}");

    test.kill().expect("kill");
    test.wait().expect("its end");
    let end = Instant::now() + Duration::from_secs(30);
    let left = || -> Vec<&String> {
        let there = |group: &&String| Path::new(group).exists();
        groups.iter().filter(there).collect()
    };
    while !left().is_empty() {
        assert!(Instant::now() < end, "still there: {:?} with {:?}", left(), members(&groups));
        std::thread::sleep(Duration::from_millis(50));
    }
    for process in processes {
        assert!(!Path::new(&format!("/proc/{process}/ns/net")).exists(), "process {process} is still there");
    }
}
