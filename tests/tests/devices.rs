//! Host devices, TAP devices and VRFs: `host-device`, `tap` and `vrf`, from ADD to GC, with packets.

#[path = "devices/host_device.rs"]
mod host_device;
#[path = "devices/life.rs"]
mod life;
#[path = "devices/relay.rs"]
mod relay;
#[path = "devices/sysfs.rs"]
mod sysfs;
#[path = "devices/tap.rs"]
mod tap;
#[path = "devices/vrf.rs"]
mod vrf;

use podwire_tests::{ours, Chain, Invocation, Node, Output, Pod};
use serde_json::{json, Value};

/// The addresses of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Families {
    V4,
    V6,
    Both,
}

impl Families {
    const ALL: [Families; 3] = [Families::V4, Families::V6, Families::Both];

    /// An IPAM section: 10.5.0.0/24 and fd05::/64, with the neighbour, .1 and ::1, as the default gateway.
    fn pool(self) -> Value {
        let all = [
            (
                Families::V4,
                json!([{"subnet": "10.5.0.0/24"}]),
                json!({"dst": "198.51.100.0/24", "gw": "10.5.0.1"}),
            ),
            (
                Families::V6,
                json!([{"subnet": "fd05::/64"}]),
                json!({"dst": "2001:db8::/32", "gw": "fd05::1"}),
            ),
        ];
        let own = all.iter().filter(|(family, _, _)| self == Families::Both || self == *family);
        let (ranges, routes): (Vec<_>, Vec<_>) = own.map(|(_, range, route)| (range, route)).unzip();
        json!({"type": "host-local", "ranges": ranges, "routes": routes})
    }

    /// The neighbour's addresses.
    fn neighbours(self) -> Vec<&'static str> {
        match self {
            Families::V4 => vec!["10.5.0.1"],
            Families::V6 => vec!["fd05::1"],
            Families::Both => vec!["10.5.0.1", "fd05::1"],
        }
    }
}

/// A network with one of Podwire's plugins and the newest version.
fn network(name: &str, config: &Value) -> Chain {
    Chain { version: "1.1.0".into(), ..Chain::new(&ours(), name, std::slice::from_ref(config)) }
}

/// The addresses in a result, without their prefixes.
fn addresses(result: &Value) -> Vec<String> {
    let all = result["ips"].as_array().into_iter().flatten();
    all.map(|ip| ip["address"].as_str().unwrap_or_default().split('/').next().unwrap_or_default().to_string())
        .collect()
}

/// STATUS of the first plugin of a network.
fn status(node: &Node, chain: &Chain) -> Output {
    let no_pod = Pod { name: String::new(), netns: String::new() };
    Invocation::new(node, &chain.path, "STATUS", &no_pod, &chain.config(chain.plugins.len() - 1)).run()
}

/// The state of a pod's link.
fn link(node: &Node, pod: &Pod, name: &str) -> Value {
    node.json(&format!("ip -n {} -j -d address show {name}", pod.name))[0].clone()
}

/// The error of an ADD.
fn refusal(node: &Node, pod: &Pod, config: &Value) -> (u64, String) {
    network("refused", config).try_add(node, pod).expect_err("an error").error()
}

fn without_netns(pod: &Pod) -> Pod {
    Pod { netns: String::new(), ..pod.clone() }
}
