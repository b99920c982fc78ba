//! The networks of the soak: a new plugin type needs one row here.

use std::io::Write;
use std::path::Path;

use serde_json::{json, Value};

/// A network and its chain of plugins.
#[derive(Debug)]
pub struct Network {
    /// Its name.
    pub name: &'static str,
    /// The chain for the attachment with this number. Each attachment has another number.
    pub plugins: fn(usize) -> Vec<Value>,
    /// The chain creates an interface in the pod, so it fails where the name is taken.
    pub makes_link: bool,
    /// The interface has no other end on the node: a DEL without the namespace cannot find it.
    pub within_pod: bool,
    /// The chain adds the pod's default route. A pod can have only one.
    pub default_route: bool,
    /// A pod can be on this network twice. (Not in a mixed soak: Go's bandwidth has one device for both.)
    pub twice: bool,
    /// The Go plugins have these plugins too.
    pub in_go: bool,
    /// A script that prepares the node.
    pub setup: &'static str,
    /// Scripts that prepare the node for one attachment, and that undo this. They contain `NUMBER`.
    pub fixture: Option<(&'static str, &'static str)>,
    /// What stays by design after the last pod: a bridge, with its gateway addresses.
    pub permanent: &'static [&'static str],
}

const PLAIN: Network = Network {
    name: "",
    plugins: |_| Vec::new(),
    makes_link: true,
    within_pod: false,
    default_route: false,
    twice: false,
    in_go: true,
    setup: "",
    fixture: None,
    permanent: &[],
};

/// All of them.
const NETWORKS: &[Network] = &[
    Network {
        name: "switch",
        plugins: |_| {
            vec![json!({"type": "bridge", "bridge": "sw0", "isDefaultGateway": true, "ipMasq": true,
                "macspoofchk": true, "hairpinMode": true, "ipam": pool(31)})]
        },
        default_route: true,
        permanent: &["link sw0 bridge", "address sw0 10.31.0.1/24", "address sw0 fd31::1/120"],
        ..PLAIN
    },
    Network {
        name: "ptp",
        plugins: |_| vec![json!({"type": "ptp", "ipMasq": true, "ipam": pool(32)})],
        ..PLAIN
    },
    Network {
        name: "routed",
        plugins: |_| vec![json!({"type": "calico", "mtu": 1400, "ipam": pool(42)})],
        default_route: true,
        in_go: false,
        ..PLAIN
    },
    Network {
        name: "everything",
        plugins: |number| {
            vec![
                json!({"type": "bridge", "bridge": "sw1", "isDefaultGateway": true, "ipMasq": true, "ipam": pool(33)}),
                json!({"type": "portmap", "runtimeConfig": {"portMappings": [
                    {"hostPort": port(number), "containerPort": 80, "protocol": "tcp"},
                    {"hostPort": port(number), "containerPort": 53, "protocol": "udp"}]}}),
                json!({"type": "firewall", "ingressPolicy": "same-bridge"}),
                limits(),
                tuned(),
                json!({"type": "sbr"}),
            ]
        },
        default_route: true,
        permanent: &["link sw1 bridge", "address sw1 10.33.0.1/24", "address sw1 fd33::1/120"],
        ..PLAIN
    },
    Network {
        name: "limited",
        plugins: |_| {
            let main = json!({"type": "ptp", "ipam": pool(34)});
            vec![main, limits(), tuned(), json!({"type": "firewall"}), json!({"type": "sbr"})]
        },
        ..PLAIN
    },
    Network {
        name: "loopback",
        plugins: |_| vec![json!({"type": "loopback"})],
        makes_link: false,
        ..PLAIN
    },
    Network {
        name: "pool",
        plugins: |_| vec![json!({"type": "host-local", "ipam": pool(35)})],
        makes_link: false,
        twice: true,
        ..PLAIN
    },
    Network {
        name: "fixed",
        plugins: |number| {
            let own = json!([format!("10.36.{}.{}/16", number >> 8, number & 255)]);
            let main = json!({"type": "bridge", "bridge": "sw2", "isGateway": true, "ipam": {"type": "static"},
                "runtimeConfig": {"ips": own}});
            vec![main, limits()]
        },
        twice: true,
        permanent: &["link sw2 bridge", "address sw2 10.36.0.1/16"],
        ..PLAIN
    },
    Network {
        name: "macvlan",
        plugins: |_| vec![json!({"type": "macvlan", "master": "trunk", "ipam": pool(37)})],
        within_pod: true,
        twice: true,
        in_go: false,
        setup: "ip link add trunk type veth peer name trunk-end && ip link set trunk up && ip link set trunk-end up",
        ..PLAIN
    },
    Network {
        name: "tap",
        plugins: |_| {
            vec![json!({"type": "tap", "multiQueue": true, "owner": 1000, "group": 1000, "ipam": pool(38)})]
        },
        within_pod: true,
        in_go: false,
        ..PLAIN
    },
    Network {
        name: "hostdev",
        plugins: |number| {
            vec![json!({"type": "host-device", "device": format!("hostdev{number}"), "ipam": pool(39)})]
        },
        within_pod: true,
        in_go: false,
        fixture: Some((
            "ip link add hostdevNUMBER type veth peer name devpeerNUMBER",
            // The pair may be deleted already, with the pod's namespace.
            "ip link delete devpeerNUMBER 2>/dev/null || true",
        )),
        ..PLAIN
    },
    Network {
        name: "flannel",
        plugins: |_| {
            vec![json!({"type": "flannel", "subnetFile": "/run/test/subnet.env",
                "delegate": {"bridge": "sw3", "isDefaultGateway": true}})]
        },
        default_route: true,
        in_go: false,
        setup: "printf 'FLANNEL_NETWORK=10.40.0.0/16\\nFLANNEL_SUBNET=10.40.1.1/24\\nFLANNEL_MTU=1450\\nFLANNEL_IPMASQ=true\\n' \
            >/run/test/subnet.env",
        permanent: &["link sw3 bridge", "address sw3 10.40.1.1/24"],
        ..PLAIN
    },
];

/// Addresses of both families, so few that each is assigned several times.
fn pool(net: u8) -> Value {
    json!({"type": "host-local", "ranges": [
        [{"subnet": format!("10.{net}.0.0/24")}], [{"subnet": format!("fd{net}::/120")}]]})
}

fn limits() -> Value {
    json!({"type": "bandwidth", "ingressRate": 80_000_000, "ingressBurst": 8_000_000,
        "egressRate": 80_000_000, "egressBurst": 8_000_000})
}

fn tuned() -> Value {
    json!({"type": "tuning", "mtu": 1400, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}})
}

/// The host port of the attachment with this number.
pub fn port(number: usize) -> usize {
    10_000 + number
}

/// The networks whose plugins are in all of `folders`. Prints which networks are left out.
pub fn possible(folders: &[&str]) -> Vec<&'static Network> {
    let in_all = |kind: &str| folders.iter().all(|folder| Path::new(folder).join(kind).exists());
    let both = folders.len() > 1;
    let mut all = Vec::new();
    for network in NETWORKS.iter().filter(|network| network.in_go || !both) {
        match network.types().iter().find(|kind| !in_all(kind)) {
            None => all.push(network),
            // Not println: the test runner captures it.
            Some(kind) => drop(writeln!(
                std::io::stderr(),
                "left out: network {} of the soak, no plugin {kind}",
                network.name
            )),
        }
    }
    all
}

impl Network {
    /// The types of all plugins.
    fn types(&self) -> Vec<String> {
        let all = (self.plugins)(0);
        let text = |value: &Value| value.as_str().map(str::to_string);
        all.iter().flat_map(|one| [text(&one["type"]), text(&one["ipam"]["type"])]).flatten().collect()
    }

    /// The configs of an attachment, with name and version.
    pub fn chain(&self, number: usize) -> Vec<Value> {
        let mut all = (self.plugins)(number);
        for one in &mut all {
            (one["name"], one["cniVersion"]) = (json!(self.name), json!("1.0.0"));
        }
        all
    }

    /// The interface names that an attachment can have.
    pub fn ifnames(&self) -> &'static [&'static str] {
        match self.name {
            "loopback" => &["lo"],
            _ => &["eth0", "net1", "net2"],
        }
    }
}
