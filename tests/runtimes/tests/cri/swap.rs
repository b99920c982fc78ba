//! The plugins of a node are replaced while pods run.

use podwire_runtime_tests::{Plugins, PodSpec};
use podwire_tests::differences;

use crate::network::{packets_pass, serve};
use crate::scene;

#[test]
fn pods_of_go_plugins_keep_their_network_and_are_removed_cleanly_by_our_plugins() {
    let (mut containerd, outside) = scene(Plugins::Go);
    let before = containerd.traces();
    let mut cri = containerd.cri();
    let web = serve(&mut cri, &PodSpec::named("web").port(8080, 80));
    let old = serve(&mut cri, &PodSpec::named("old"));
    packets_pass(&containerd, &outside, [&web, &old]);

    containerd.install(Plugins::Ours);
    packets_pass(&containerd, &outside, [&web, &old]);
    // Start a pod with our plugins next to those of Go's.
    let new = serve(&mut cri, &PodSpec::named("new").port(8081, 80));
    packets_pass(&containerd, &outside, [&web, &new]);
    // After an installation a node, or containerd, is often restarted.
    containerd.kill();
    containerd.restart();
    packets_pass(&containerd, &outside, [&web, &new]);

    let mut cri = containerd.cri();
    for server in [web, old, new] {
        cri.remove(&server.pod.id);
    }
    // Nothing exists that did not exist before the first pod. (Our plugins may remove more of what Go's leave.)
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
