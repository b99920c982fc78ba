//! A node changes its plugins while pods run.

use podwire_runtime_tests::{Plugins, PodSpec};
use podwire_tests::differences;

use crate::network::{packets_pass, serve};
use crate::scene;

#[test]
fn pods_of_go_plugins_keep_their_network_under_ours_and_are_removed_cleanly_by_them() {
    let (mut containerd, outside) = scene(Plugins::Go);
    let before = containerd.traces();
    let mut cri = containerd.cri();
    let web = serve(&mut cri, &PodSpec::named("web").port(8080, 80));
    let old = serve(&mut cri, &PodSpec::named("old"));
    packets_pass(&containerd, &outside, [&web, &old]);

    containerd.install(Plugins::Ours);
    packets_pass(&containerd, &outside, [&web, &old]);
    // A pod of ours beside those of Go.
    let new = serve(&mut cri, &PodSpec::named("new").port(8081, 80));
    packets_pass(&containerd, &outside, [&web, &new]);
    // A node is often restarted after an installation, or containerd is.
    containerd.kill();
    containerd.restart();
    packets_pass(&containerd, &outside, [&web, &new]);

    let mut cri = containerd.cri();
    for server in [web, old, new] {
        cri.remove(&server.pod.id);
    }
    // Nothing is there that was not before the first pod. (Of what Go leaves, ours may take more away.)
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        let changed = differences(&before, &containerd.traces());
        let left: Vec<_> = changed.lines().filter(|line| line.starts_with('+')).collect();
        if left.is_empty() {
            break;
        }
        assert!(std::time::Instant::now() < end, "left behind: {left:#?}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}
