//! The plugins of a node are replaced while containers run.

use podwire_runtime_tests::{ContainerSpec, Engine, Plugins};

use crate::scene;

#[test]
fn containers_of_go_plugins_keep_their_network_and_are_removed_cleanly_by_our_plugins() {
    let (mut docker, outside) = scene(Plugins::Go);
    let before = docker.traces();
    let web = docker.run(&ContainerSpec::named("web").port(8080, 80));
    let old = docker.run(&ContainerSpec::named("old").port(8082, 80));
    docker.packets_pass(&outside, &web, ("old", &old));

    docker.install(Plugins::Ours);
    docker.packets_pass(&outside, &web, ("old", &old));
    // Start a container with our plugins next to those of Go's, and restart dockerd.
    let new = docker.run(&ContainerSpec::named("new").port(8081, 80));
    docker.packets_pass(&outside, &web, ("new", &new));
    docker.kill();
    docker.restart();
    docker.packets_pass(&outside, &web, ("new", &new));

    for name in ["web", "old", "new"] {
        docker.remove(name);
    }
    // Nothing exists that did not exist before the first container. (Our plugins may remove more of what Go's leave.)
    docker.assert_nothing_new(&before);
}
