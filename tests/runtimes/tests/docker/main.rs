//! Docker with containers that `podwire cni` attaches, with Podwire's plugins and, as a control, with Debian's.

mod crashes;
mod network;
mod refusals;
mod swap;

use podwire_runtime_tests::{ContainerSpec, Docker, Engine, Plugins, Stage};
use podwire_tests::Pod;

/// A stage with a world outside, and dockerd on it. One container has come and gone: what waits for the next one by
/// design (the bridge, its address) is there.
fn scene(plugins: Plugins) -> (Docker, Pod) {
    let stage = Stage::new(plugins);
    let outside = stage.outside();
    let docker = Docker::start(stage);
    docker.run(&ContainerSpec::named("first").port(1, 1));
    docker.remove("first");
    (docker, outside)
}
