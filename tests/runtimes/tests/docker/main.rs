//! Docker with containers that `podwire cni` attaches, with Podwire's plugins and, as a control, with Debian's.

mod crashes;
mod network;
mod refusals;
mod swap;

use podwire_runtime_tests::{ContainerSpec, Docker, Engine, Plugins, Stage};
use podwire_tests::Pod;

/// A stage with a machine outside and dockerd. One container was started and removed, so that what stays by design (the
/// bridge, its address) exists.
fn scene(plugins: Plugins) -> (Docker, Pod) {
    let stage = Stage::new(plugins);
    let outside = stage.outside();
    let docker = Docker::start(stage);
    docker.run(&ContainerSpec::named("first").port(1, 1));
    docker.remove("first");
    (docker, outside)
}
