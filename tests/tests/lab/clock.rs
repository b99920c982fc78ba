//! A clock that jumps: leases are neither lost nor taken by others, and no packet is. The clock belongs to the whole machine,
//! so this is tried in the emulated one (`scripts/vm`), and nowhere else.

use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};

use super::laboratory::Laboratory;

/// Set where a test may set the clock.
const OURS: &str = "PODWIRE_CLOCK_IS_OURS";

/// Longer than any lease, both ways, and home.
const JUMPS: [&str; 3] = ["+2 days", "-4 days", "+2 days"];

#[test]
fn a_clock_that_jumps_harms_nobody() {
    if std::env::var_os(OURS).is_none() {
        drop(writeln!(std::io::stderr(), "left out: a clock that jumps, which would be the whole machine's"));
        return;
    }
    for store in ["embedded", "etcd"] {
        let lab = Laboratory::up(&["--nodes", "2", "--pods", "1", "--store", store]);
        let before = ranges(&lab);
        for jump in JUMPS {
            let pings = lab.ping("n1-pod1", "n2-pod1");
            set_clock(jump);
            // Whoever starts now reads what was written at another time.
            let (broken, done) = lab.json(&["break", "kill-agent", "n1"]);
            assert!(done, "{store}, {jump}: {broken}");
            let (healed, done) = lab.json(&["heal"]);
            assert!(done, "{store}, {jump}: {healed}");
            stays_whole(&lab, &format!("{store}, {jump}"));
            let lost = pings.lost();
            assert!(lost.is_empty(), "{store}, {jump}: {lost:?}");
            lab.assert_model_holds(2, 2, 2);
            assert_eq!(ranges(&lab), before, "{store}, {jump}");
        }
    }
}

fn ranges(lab: &Laboratory) -> Vec<String> {
    let status = lab.status();
    status["nodes"].as_array().expect("nodes").iter().map(|node| node["ranges"].to_string()).collect()
}

fn set_clock(to: &str) {
    let done = Command::new("date").args(["--set", to]).output().expect("date");
    assert!(done.status.success(), "date --set {to}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Some rounds of looking for what is expired pass meanwhile.
#[track_caller]
fn stays_whole(lab: &Laboratory, what: &str) {
    let end = Instant::now() + Duration::from_secs(5);
    while Instant::now() < end {
        let status = lab.status();
        assert!(status["whole"] == true, "{what}: {status}");
    }
}
