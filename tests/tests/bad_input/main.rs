//! For any invalid input a plugin prints one CNI error with the right code, the key and the reason, and changes
//! nothing: no partial attachment, no panic, no signal.

mod addresses;
mod changed;
mod everywhere;
mod plugins;

use std::cell::OnceCell;

use podwire_tests::{differences, ours, sample, types, Chain, Invocation, Node, Output, Pod};
use serde_json::{json, Value};

const VERSION: u64 = 1;
const ENV: u64 = 4;
const IO: u64 = 5;
const DECODE: u64 = 6;
const CONFIG: u64 = 7;
const NETNS: u64 = 8;
const TRY_AGAIN: u64 = 11;
const KERNEL: u64 = 100;
const PORT_TAKEN: u64 = 101;
const INTERNAL: u64 = 999;

/// A node with an attached pod, `blue`, and a detached pod, `green`.
struct Scene {
    node: Node,
    blue: Pod,
    green: Pod,
    attached: Value,
    /// The state that must not change.
    state: OnceCell<String>,
}

impl Scene {
    fn new() -> Scene {
        let node = Node::new();
        node.create_uplink();
        node.write("/run/flannel/subnet.env", SUBNET);
        // A device for host-device.
        node.sh("ip link add hostdev0 type veth peer name hostdev1");
        let (blue, green) = (node.pod("blue"), node.pod("green"));
        let attached = Chain::new(&ours(), "net", &[good("bridge")]).add(&node, &blue);
        Scene { node, blue, green, attached, state: OnceCell::new() }
    }

    /// A valid request to a plugin. Chained plugins get the attached pod.
    fn request(&self, kind: &str) -> Request<'_> {
        let mut config = good(kind);
        config["name"] = json!("net");
        config["cniVersion"] = json!("1.0.0");
        let chained = is_chained(kind);
        if chained {
            config["prevResult"] = self.attached.clone();
        }
        let pod = if chained { &self.blue } else { &self.green };
        let call = Invocation::new(&self.node, &ours(), "ADD", pod, &json!({"type": kind}));
        Request { call, config: Ok(config) }
    }

    fn state(&self) -> String {
        self.node.state(&self.blue) + &self.node.inside(&self.green)
    }
}

/// The file that flanneld writes.
const SUBNET: &str =
    "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n";

fn is_chained(kind: &str) -> bool {
    matches!(kind, "portmap" | "bandwidth" | "firewall" | "tuning" | "sbr" | "vrf")
}

fn good(kind: &str) -> Value {
    let pool = json!({"type": "host-local", "subnet": "10.7.0.0/24"});
    match kind {
        "bridge" => json!({"type": kind, "bridge": "br0", "isGateway": true, "ipMasq": true, "ipam": pool}),
        "flannel" => json!({"type": kind, "delegate": {"type": "ptp"}}),
        "ptp" => json!({"type": kind, "ipMasq": true, "ipam": pool}),
        "calico" => json!({"type": kind, "ipam": pool}),
        "calico-ipam" => {
            json!({"type": kind, "datastore_type": "sqlite", "nodename": "node1", "ipam": {"type": kind}})
        }
        "macvlan" | "ipvlan" => json!({"type": kind, "master": "uplink", "ipam": pool}),
        "vlan" => json!({"type": kind, "master": "uplink", "vlanId": 5, "ipam": pool}),
        "dummy" | "host-local" => json!({"type": kind, "ipam": pool}),
        "dhcp" => json!({"type": kind, "ipam": {"type": kind}}),
        "host-device" => json!({"type": kind, "device": "hostdev0", "ipam": pool}),
        "tap" => json!({"type": kind, "ipam": pool}),
        "vrf" => json!({"type": kind, "vrfname": "red"}),
        "static" => json!({"type": kind, "ipam": {"type": kind, "addresses": [{"address": "10.9.0.5/24"}]}}),
        "portmap" => {
            json!({"type": kind, "runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80}]}})
        }
        "bandwidth" => json!({"type": kind, "ingressRate": 8_000_000, "ingressBurst": 800_000}),
        "tuning" => json!({"type": kind, "sysctl": {"net.core.somaxconn": "4000"}, "mtu": 1400}),
        _ => json!({"type": kind}),
    }
}

/// A request that a case can damage.
#[derive(Clone)]
struct Request<'a> {
    call: Invocation<'a>,
    /// The config, or bytes that are not JSON.
    config: Result<Value, Vec<u8>>,
}

impl Request<'_> {
    fn env(self, name: &str, value: &str) -> Self {
        Request { call: self.call.env(name, value), ..self }
    }

    fn without_env(self, name: &str) -> Self {
        Request { call: self.call.without(name), ..self }
    }

    fn stdin(self, bytes: impl Into<Vec<u8>>) -> Self {
        Request { config: Err(bytes.into()), ..self }
    }

    /// Sets a value by its path, such as `ipam.ranges`.
    fn set(mut self, path: &str, value: Value) -> Self {
        let config = self.config.as_mut().expect("a config");
        let place = path.split('.').fold(config, |place, key| &mut place[key]);
        *place = value;
        self
    }

    fn without(mut self, key: &str) -> Self {
        self.config.as_mut().expect("a config").as_object_mut().expect("an object").remove(key);
        self
    }

    fn run(&self) -> Output {
        match &self.config {
            Ok(config) => self.call.run_bytes(config.to_string().as_bytes(), &[]),
            Err(bytes) => self.call.run_bytes(bytes, &[]),
        }
    }
}

/// What is wrong with the response to a request that must be refused with this code and these texts, and with the
/// node's state afterwards. Empty if nothing is wrong.
fn complaints(scene: &Scene, request: &Request<'_>, code: u64, words: &[&str]) -> Vec<String> {
    let before = scene.state.get_or_init(|| scene.state());
    let output = request.run();
    let mut all = Vec::new();
    if output.status != 1 {
        all.push(format!("exit status {}, not 1", output.status));
    }
    if !output.stderr.is_empty() {
        all.push(format!("plugins are silent: {}", output.stderr));
    }
    match serde_json::from_str::<Value>(&output.stdout) {
        Err(error) => all.push(format!("not exactly one JSON object ({error})")),
        Ok(error) => all.extend(wrong_error(&error, code, words)),
    }
    let changes = differences(before, &scene.state());
    if !changes.is_empty() {
        all.push(format!("it touched the node or the pod: {changes}"));
    }
    if !all.is_empty() {
        all.push(output.stdout.chars().take(1000).collect());
    }
    all
}

fn wrong_error(error: &Value, code: u64, words: &[&str]) -> Vec<String> {
    let mut all = Vec::new();
    let keys: Vec<_> =
        error.as_object().map(|object| object.keys().map(String::as_str).collect()).unwrap_or_default();
    let optional = keys.strip_prefix(&["code", "msg"]).unwrap_or(&["?"]);
    if !matches!(optional, [] | ["details"] | ["hint"] | ["details", "hint"]) {
        all.push("not an error object".to_string());
    }
    if error["code"] != code {
        all.push(format!("code {}, not {code}", error["code"]));
    }
    let text = ["msg", "details", "hint"].map(|key| error[key].as_str().unwrap_or_default()).join("; ");
    all.extend(words.iter().filter(|word| !text.contains(*word)).map(|word| format!("{word:?} is not said")));
    if text.is_empty() || text.len() > 1000 {
        all.push(format!("{} characters are too long to read", text.len()));
    }
    all
}

#[track_caller]
fn assert_refused(scene: &Scene, what: &str, request: &Request<'_>, code: u64, words: &[&str]) {
    let wrong = complaints(scene, request, code, words);
    assert!(wrong.is_empty(), "{what}: {}", wrong.join("; "));
}

/// Checks all cases and reports every failing one.
fn check_all(cases: impl IntoIterator<Item = (String, String, &'static Spoilt)>) {
    let mut scene = Scene::new();
    let mut wrong = Vec::new();
    for (kind, what, (spoil, code, words)) in cases {
        let found = complaints(&scene, &spoil(scene.request(&kind)), *code, words);
        if !found.is_empty() {
            wrong.push(format!("{kind}: {what}: {}", found.join("; ")));
            scene = Scene::new();
        }
    }
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n\n"));
}

/// How a request is damaged, and the expected error.
type Spoilt = (fn(Request<'_>) -> Request<'_>, u64, &'static [&'static str]);

/// Cases of single plugin types.
fn check(cases: &'static [(&str, &str, Spoilt)]) {
    check_all(cases.iter().map(|(kind, what, spoilt)| (kind.to_string(), what.to_string(), spoilt)));
}

/// The same cases for every plugin type.
fn check_everywhere(cases: &'static [(&str, Spoilt)]) {
    let of_kind =
        |kind: String| cases.iter().map(move |(what, spoilt)| (kind.clone(), what.to_string(), spoilt));
    let all: Vec<_> = types().into_iter().flat_map(of_kind).collect();
    check_all(sample("bad input for every plugin", all, 4));
}
