//! Clock jumps: no lease and no packet is lost. The clock belongs to the whole machine, so this test runs only in the
//! emulated machine (`scripts/vm`).

use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};

use super::laboratory::Laboratory;

/// Set where a test may set the clock.
const OURS: &str = "PODWIRE_CLOCK_IS_OURS";

/// Longer than any lease, forward, backward and back to the right time.
const JUMPS: [&str; 3] = ["+2 days", "-4 days", "+2 days"];

#[test]
fn clock_jumps_lose_no_lease_and_no_packet() {
    if std::env::var_os(OURS).is_none() {
        drop(writeln!(std::io::stderr(), "left out: clock jumps, which would affect the whole machine"));
        return;
    }
    for store in ["embedded", "etcd"] {
        let lab = Laboratory::up(&["--nodes", "2", "--pods", "1", "--store", store]);
        let before = pod_cidrs(&lab);
        for jump in JUMPS {
            let pings = lab.ping("n1-pod1", "n2-pod1");
            set_clock(jump);
            // The restarted agent reads records of another time.
            let (broken, done) = lab.json(&["break", "kill-agent", "n1"]);
            assert!(done, "{store}, {jump}: {broken}");
            let (healed, done) = lab.json(&["heal"]);
            assert!(done, "{store}, {jump}: {healed}");
            stays_healthy(&lab, &format!("{store}, {jump}"));
            let lost = pings.lost();
            assert!(lost.is_empty(), "{store}, {jump}: {lost:?}");
            lab.assert_model_holds(2, 2, 2);
            assert_eq!(pod_cidrs(&lab), before, "{store}, {jump}");
        }
    }
}

fn pod_cidrs(lab: &Laboratory) -> Vec<String> {
    let status = lab.status();
    status["nodes"].as_array().expect("nodes").iter().map(|node| node["podCidrs"].to_string()).collect()
}

fn set_clock(to: &str) {
    let done = Command::new("date").args(["--set", to]).output().expect("date");
    assert!(done.status.success(), "date --set {to}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Long enough for some checks for expired leases.
#[track_caller]
fn stays_healthy(lab: &Laboratory, what: &str) {
    let end = Instant::now() + Duration::from_secs(5);
    while Instant::now() < end {
        let status = lab.status();
        assert!(status["healthy"] == true, "{what}: {status}");
    }
}
