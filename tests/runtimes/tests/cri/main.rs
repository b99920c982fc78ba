//! containerd as Kubernetes uses it: pods over the CRI, with Podwire's plugins and, as a control, with Debian's.

mod crashes;
mod crowd;
mod network;
mod newer;
mod outlive;
mod refusals;
mod swap;

use podwire_runtime_tests::{Containerd, Cri, Plugins, PodSpec, Sandbox, Stage};
use podwire_tests::{differences, Pod};

/// A stage with a machine outside and containerd. One pod was started and removed, so that what stays by design (the
/// bridge, its address) exists.
fn scene(plugins: Plugins) -> (Containerd, Pod) {
    let stage = Stage::new(plugins);
    let outside = stage.outside();
    let containerd = Containerd::start(stage);
    let mut cri = containerd.cri();
    let first =
        cri.run(&PodSpec::named("first").port(1, 1).annotation(INGRESS, "1M").annotation(EGRESS, "1M"));
    cri.remove(&first.id);
    (containerd, outside)
}

/// Kubernetes' annotations for the bandwidth of a pod, in bits per second.
const INGRESS: &str = "kubernetes.io/ingress-bandwidth";
const EGRESS: &str = "kubernetes.io/egress-bandwidth";

/// Panics if the stage differs from `before`. The kernel deletes links in the background, so this waits.
#[track_caller]
fn assert_nothing_left(containerd: &Containerd, before: &str) {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        let all = differences(before, &containerd.traces());
        if all.is_empty() {
            return;
        }
        assert!(std::time::Instant::now() < end, "left behind:{all}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// The pod's network namespace, with a name for the stage's functions (ping, listen).
fn by_netns(sandbox: &Sandbox) -> Pod {
    let name = sandbox.netns.rsplit('/').next().unwrap_or_default();
    Pod { name: name.into(), netns: sandbox.netns.clone() }
}

/// Stops and removes all pods of containerd.
fn remove_all(cri: &mut Cri) {
    for id in cri.list() {
        cri.remove(&id);
    }
}
