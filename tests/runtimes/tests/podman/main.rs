//! podman with the CNI backend, with Podwire's plugins and, as a control, with Debian's.

mod crashes;
mod created;
mod network;
mod refusals;
mod swap;

use podwire_runtime_tests::{ContainerSpec, Engine, Plugins, Podman, Stage};
use podwire_tests::Pod;

/// A stage with a machine outside, podman, and the network `pods` that podman itself has written. One container was
/// started and removed, so that what stays by design (the bridge, its address) exists.
fn scene(plugins: Plugins) -> (Podman, Pod) {
    let stage = Stage::new(plugins);
    let outside = stage.outside();
    let podman = Podman::new(stage, "pods");
    let subnets = ["--subnet", "10.90.0.0/24", "--subnet", "fd90::/64"];
    podman.must(&[&["network", "create", "--ipv6"], &subnets[..], &["pods"]].concat());
    podman.run(&ContainerSpec::named("first").port(1, 1));
    podman.remove("first");
    (podman, outside)
}
