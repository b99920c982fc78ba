//! The plugins of a node are replaced while containers run.

use podwire_runtime_tests::{ContainerSpec, Engine, Plugins};

use crate::scene;

#[test]
fn containers_of_go_plugins_keep_their_network_and_are_removed_cleanly_by_our_plugins() {
    let (podman, outside) = scene(Plugins::Go);
    let before = podman.traces();
    let web = podman.run(&ContainerSpec::named("web").port(8080, 80));
    let old = podman.run(&ContainerSpec::named("old").port(8082, 80));
    podman.packets_pass(&outside, &web, ("old", &old));

    podman.install(Plugins::Ours);
    podman.packets_pass(&outside, &web, ("old", &old));
    // Start a container with our plugins next to those of Go's; then restart one of Go's.
    let new = podman.run(&ContainerSpec::named("new").port(8081, 80));
    podman.packets_pass(&outside, &web, ("new", &new));
    podman.must(&["restart", "-t", "0", "old"]);
    podman.packets_pass(&outside, &web, ("old", &podman.container("old")));
    assert_eq!(podman.page(&outside, "192.0.2.1:8082"), "old");

    for name in ["web", "old", "new"] {
        podman.remove(name);
    }
    // Nothing exists that did not exist before the first container. (Our plugins may remove more of what Go's leave.)
    podman.assert_nothing_new(&before);
}
