//! An agent reports the pods that kept the MTU of a former uplink.

use std::time::{Duration, Instant};

use super::laboratory::{text, Laboratory};

#[test]
fn pods_with_the_mtu_of_a_former_uplink_are_reported_by_name() {
    for network in ["flannel", "ptp", "calico"] {
        let lab = Laboratory::up(&["--nodes", "2", "--pods", "1", "--cni-network", network]);
        assert!(lab.run(&["status"]).status.success(), "{network}");
        lab.sh("n1", "ip link set eth0 mtu 1400");
        let end = Instant::now() + Duration::from_secs(60);
        let mut said = String::new();
        while !said.contains("default/n1-pod1") {
            assert!(Instant::now() < end, "{network}: {said}");
            said = text(&lab.run(&["status"]).stdout);
        }
        assert!(!lab.run(&["status"]).status.success(), "{network}: {said}");
        let fetch = "python3 -c \"import urllib.request as u; print(u.urlopen('http://127.0.0.1:8081/metrics', timeout=60).read().decode())\"";
        let metrics = lab.sh("n1", fetch);
        assert!(metrics.contains("podwire_agent_oversized_pods 1"), "{network}: {metrics}");
        let status = lab.sh("n1", &fetch.replace("metrics", "status"));
        assert!(status.contains("\"default/n1-pod1\": 14"), "{network}: {status}");
        let log = std::fs::read_to_string(format!("/run/podwire/lab/{}/n1.log", lab.name)).expect("the log");
        assert!(log.contains("default/n1-pod1 (14"), "{network}: {log}");

        // It is no problem any more when the network carries such packets again.
        lab.sh("n1", "ip link set eth0 mtu 1500");
        let end = Instant::now() + Duration::from_secs(60);
        while !lab.run(&["status"]).status.success() {
            assert!(Instant::now() < end, "{network}: {}", text(&lab.run(&["status"]).stdout));
        }
    }
}
