//! containerd restarts; pods and their network stay.

use podwire_runtime_tests::{Plugins, PodSpec};

use crate::network::{packets_pass, serve};
use crate::{assert_nothing_left, by_netns, scene};

#[test]
fn pods_keep_their_network_while_containerd_is_down_and_are_removed_cleanly_afterwards() {
    let (mut containerd, outside) = scene(Plugins::Ours);
    let before = containerd.traces();
    let mut cri = containerd.cri();
    let web = serve(&mut cri, &PodSpec::named("web").port(8080, 80));
    let other = serve(&mut cri, &PodSpec::named("other"));
    let running = containerd.traces();

    // containerd stops once regularly and crashes once.
    for crash in [false, true] {
        if crash {
            containerd.kill();
        } else {
            containerd.stop();
        }
        for address in &web.pod.addresses {
            assert!(
                containerd.pings(Some(&by_netns(&other.pod)), address),
                "{address} while containerd is away"
            );
        }
        containerd.restart();
        assert_nothing_left(&containerd, &running);
    }

    packets_pass(&containerd, &outside, [&web, &other]);
    let mut cri = containerd.cri();
    for server in [web, other] {
        cri.remove(&server.pod.id);
    }
    assert_nothing_left(&containerd, &before);
}
