//! Whatever a plugin is fed with, it answers with one CNI error that has the right code and names the key and the
//! reason, and it has touched nothing: no half-made pod, no panic, no signal.

use std::cell::OnceCell;

use podwire_tests::{assert_same, differences, ours, types, Chain, Invocation, Node, Output, Pod};
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

/// A node with a pod that is attached, `blue`, and one that is not, `green`.
struct Scene {
    node: Node,
    blue: Pod,
    green: Pod,
    attached: Value,
    /// What nobody may change.
    state: OnceCell<String>,
}

impl Scene {
    fn new() -> Scene {
        let node = Node::new();
        let (blue, green) = (node.pod("blue"), node.pod("green"));
        let attached = Chain::new(&ours(), "net", &[good("bridge")]).add(&node, &blue);
        Scene { node, blue, green, attached, state: OnceCell::new() }
    }

    /// A good request to a plugin: chained ones get the pod that is attached.
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

fn is_chained(kind: &str) -> bool {
    matches!(kind, "portmap" | "bandwidth" | "firewall" | "tuning" | "sbr")
}

fn good(kind: &str) -> Value {
    let pool = json!({"type": "host-local", "subnet": "10.7.0.0/24"});
    match kind {
        "bridge" => json!({"type": kind, "bridge": "br0", "isGateway": true, "ipMasq": true, "ipam": pool}),
        "ptp" => json!({"type": kind, "ipMasq": true, "ipam": pool}),
        "host-local" => json!({"type": kind, "ipam": pool}),
        "static" => json!({"type": kind, "ipam": {"type": kind, "addresses": [{"address": "10.9.0.5/24"}]}}),
        "portmap" => {
            json!({"type": kind, "runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80}]}})
        }
        "bandwidth" => json!({"type": kind, "ingressRate": 8_000_000, "ingressBurst": 800_000}),
        "tuning" => json!({"type": kind, "sysctl": {"net.core.somaxconn": "4000"}, "mtu": 1400}),
        _ => json!({"type": kind}),
    }
}

/// What goes to a plugin, and can be spoilt.
#[derive(Clone)]
struct Request<'a> {
    call: Invocation<'a>,
    /// The config, or bytes that are none.
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

/// What is wrong with the answer to a request that must be refused with this code and these words, and with what
/// it did to the node; empty if all is well.
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
        Ok(error) => all.extend(wrong_words(&error, code, words)),
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

fn wrong_words(error: &Value, code: u64, words: &[&str]) -> Vec<String> {
    let mut all = Vec::new();
    let keys: Vec<_> =
        error.as_object().map(|object| object.keys().map(String::as_str).collect()).unwrap_or_default();
    if !matches!(keys[..], ["code", "msg"] | ["code", "msg", "details"]) {
        all.push("not an error object".to_string());
    }
    if error["code"] != code {
        all.push(format!("code {}, not {code}", error["code"]));
    }
    let text = error["msg"].as_str().unwrap_or_default();
    all.extend(words.iter().filter(|word| !text.contains(*word)).map(|word| format!("{word:?} is not said")));
    if text.is_empty() || text.len() > 1000 {
        all.push(format!("nobody reads {} characters", text.len()));
    }
    all
}

#[track_caller]
fn assert_refused(scene: &Scene, what: &str, request: &Request<'_>, code: u64, words: &[&str]) {
    let wrong = complaints(scene, request, code, words);
    assert!(wrong.is_empty(), "{what}: {}", wrong.join("; "));
}

/// Checks all, and complains of all.
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

/// How a request is spoilt, and what is said of it.
type Spoilt = (fn(Request<'_>) -> Request<'_>, u64, &'static [&'static str]);

/// Cases of single plugin types.
fn check(cases: &'static [(&str, &str, Spoilt)]) {
    check_all(cases.iter().map(|(kind, what, spoilt)| (kind.to_string(), what.to_string(), spoilt)));
}

/// The same cases for every plugin type.
fn check_everywhere(cases: &'static [(&str, Spoilt)]) {
    check_all(
        types().into_iter().flat_map(|kind| {
            cases.iter().map(move |(what, spoilt)| (kind.clone(), what.to_string(), spoilt))
        }),
    );
}

#[test]
fn what_is_refused_here_is_served_otherwise() {
    for kind in types() {
        let scene = Scene::new();
        let output = scene.request(&kind).run();
        assert_eq!(output.status, 0, "{kind}: {}{}", output.stdout, output.stderr);
    }
}

#[test]
#[rustfmt::skip] // a table
fn standard_input_that_is_no_config_is_refused() {
    check_everywhere(&[
        ("nothing", (|r| r.stdin(""), DECODE, &["the input is empty"])),
        ("blanks", (|r| r.stdin(" \n\t"), DECODE, &["the input is empty"])),
        ("half an object", (|r| r.stdin(r#"{"cniVersion": "1.0.0", "na"#), DECODE, &["line 1", "EOF"])),
        ("a missing colon", (|r| r.stdin("{\n\"name\" \"x\"}"), DECODE, &["line 2", "expected `:`"])),
        ("a trailing comma", (|r| r.stdin(r#"{"name": "x",}"#), DECODE, &["trailing comma"])),
        ("two objects", (|r| r.stdin("{}{}"), DECODE, &["trailing characters"])),
        ("NUL bytes", (|r| r.stdin(vec![0; 100]), DECODE, &["invalid JSON"])),
        ("a NUL byte at the end", (|r| r.stdin("{}\0"), DECODE, &["trailing characters"])),
        ("no UTF-8", (|r| r.stdin(&b"{\"name\": \"\xff\xfe\"}"[..]), DECODE, &["invalid unicode"])),
        ("half a character", (|r| r.stdin(r#"{"name": "\ud800"}"#), DECODE, &["invalid JSON"])),
        ("ten megabytes of letters", (|r| r.stdin(vec![b'x'; 10 << 20]), DECODE, &["invalid JSON"])),
        ("a million brackets", (|r| r.stdin(vec![b'['; 1_000_000]), DECODE, &["recursion limit"])),
        ("a hundred thousand objects in each other", (|r| r.stdin(br#"{"a":"#.repeat(100_000)), DECODE, &["recursion limit"])),
        ("a number beyond all", (|r| r.stdin(r#"{"mtu": 1e999}"#), DECODE, &["number out of range"])),
        ("a list", (|r| r.stdin("[]"), DECODE, &["not a JSON object"])),
        ("a text", (|r| r.stdin("\"name\""), DECODE, &["not a JSON object"])),
        ("a number", (|r| r.stdin("7"), DECODE, &["not a JSON object"])),
        ("null", (|r| r.stdin("null"), DECODE, &["not a JSON object"])),
    ]);
}

#[test]
fn ten_megabytes_that_make_sense_are_read() {
    let scene = Scene::new();
    let request = scene.request("static").set("padding", json!("x".repeat(10 << 20)));
    assert_eq!(request.run().status, 0);
}

#[test]
#[rustfmt::skip] // a table
fn names_and_versions_that_cannot_be_are_refused() {
    check_everywhere(&[
        ("a version from the future", (|r| r.set("cniVersion", json!("9.9.9")), VERSION, &["incompatible CNI versions"])),
        ("a version that is none", (|r| r.set("cniVersion", json!("one")), VERSION, &["incompatible CNI versions"])),
        ("a version that is a number", (|r| r.set("cniVersion", json!(1.0)), CONFIG, &["cniVersion", "string"])),
        ("a version that is a list", (|r| r.set("cniVersion", json!(["1.0.0"])), CONFIG, &["cniVersion", "string"])),
        ("no name", (|r| r.without("name"), CONFIG, &["missing network name"])),
        ("an empty name", (|r| r.set("name", json!("")), CONFIG, &["missing network name"])),
        ("a name that is null", (|r| r.set("name", Value::Null), CONFIG, &["missing network name"])),
        ("a name that is a number", (|r| r.set("name", json!(5)), CONFIG, &["name", "string"])),
        ("a name that climbs", (|r| r.set("name", json!("../../etc")), CONFIG, &["invalid characters found in network name"])),
        ("a name that is a folder", (|r| r.set("name", json!("..")), CONFIG, &["invalid characters found in network name"])),
        ("a name with a slash", (|r| r.set("name", json!("a/b")), CONFIG, &["invalid characters found in network name"])),
        ("a name with a NUL byte", (|r| r.set("name", json!("a\0b")), CONFIG, &["invalid characters found in network name"])),
        ("a name with a line feed", (|r| r.set("name", json!("a\nb")), CONFIG, &["invalid characters found in network name"])),
        ("a result of an unknown version", (|r| r.set("prevResult", json!({"cniVersion": "9.9.9"})), VERSION, &["prevResult", "9.9.9"])),
        ("a result that is a text", (|r| r.set("prevResult", json!("none")), DECODE, &["prevResult"])),
        ("a result with an address that is none", (|r| r.set("prevResult", json!({"ips": [{"address": "10.7.0.5"}]})), DECODE, &["prevResult", "ips[0].address"])),
        ("a runtimeConfig that is a list", (|r| r.set("runtimeConfig", json!([])).set("name", json!("")), CONFIG, &["name"])),
    ]);
}

#[test]
fn a_name_of_300_characters_is_served_or_refused_by_its_length() {
    let scene = Scene::new();
    for kind in types() {
        let request = scene.request(&kind).set("name", json!("n".repeat(300)));
        match kind.as_str() {
            "bridge" | "ptp" | "host-local" => {
                assert_refused(&scene, &kind, &request, CONFIG, &["name", "300", "255"]);
                // And so it is no reason to keep a pod.
                assert_eq!(request.env("CNI_COMMAND", "DEL").run().status, 0);
            }
            // Nothing that these make has the whole name in it.
            _ => {
                let served = Scene::new();
                let request = served.request(&kind).set("name", json!("n".repeat(300)));
                assert_eq!(request.run().status, 0, "{kind}: {}", request.run().stdout);
                assert_eq!(request.env("CNI_COMMAND", "DEL").run().status, 0, "{kind}");
            }
        }
    }
}

#[test]
#[rustfmt::skip] // a table
fn an_environment_that_cannot_be_is_refused() {
    check_everywhere(&[
        ("an unknown verb", (|r| r.env("CNI_COMMAND", "FROB"), ENV, &["unknown CNI_COMMAND: FROB"])),
        ("a verb in small letters", (|r| r.env("CNI_COMMAND", "add"), ENV, &["unknown CNI_COMMAND: add"])),
        ("no container", (|r| r.without_env("CNI_CONTAINERID"), ENV, &["CNI_CONTAINERID"])),
        ("an empty container", (|r| r.env("CNI_CONTAINERID", ""), ENV, &["CNI_CONTAINERID"])),
        ("no namespace", (|r| r.without_env("CNI_NETNS"), ENV, &["CNI_NETNS"])),
        ("no interface", (|r| r.without_env("CNI_IFNAME"), ENV, &["CNI_IFNAME"])),
        ("no path", (|r| r.without_env("CNI_PATH"), ENV, &["CNI_PATH"])),
        ("nothing at all", (|r| r.env("CNI_NETNS", "").env("CNI_IFNAME", "").env("CNI_CONTAINERID", ""), ENV, &["CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME"])),
        ("a container that climbs", (|r| r.env("CNI_CONTAINERID", "../../x"), ENV, &["invalid characters in containerID"])),
        ("a container with a slash", (|r| r.env("CNI_CONTAINERID", "a/b"), ENV, &["invalid characters in containerID"])),
        ("a container that is a folder", (|r| r.env("CNI_CONTAINERID", ".."), ENV, &["invalid characters in containerID"])),
        ("a container with a line feed", (|r| r.env("CNI_CONTAINERID", "a\r\nb"), ENV, &["invalid characters in containerID"])),
        ("an interface of 16 bytes", (|r| r.env("CNI_IFNAME", "eth0123456789012"), ENV, &["interface name is too long"])),
        ("an interface that is a folder", (|r| r.env("CNI_IFNAME", ".."), ENV, &["interface name is . or .."])),
        ("an interface with a slash", (|r| r.env("CNI_IFNAME", "a/b"), ENV, &["interface name contains /"])),
        ("an interface with a blank", (|r| r.env("CNI_IFNAME", "a b"), ENV, &["interface name contains /"])),
        ("an interface with a colon", (|r| r.env("CNI_IFNAME", "a:b"), ENV, &["interface name contains /"])),
        ("arguments without a value", (|r| r.env("CNI_ARGS", "IP"), ENV, &["ARGS: invalid pair \"IP\""])),
        ("arguments with too many", (|r| r.env("CNI_ARGS", "IP=1=2"), ENV, &["ARGS: invalid pair \"IP=1=2\""])),
        ("arguments with an empty end", (|r| r.env("CNI_ARGS", "IgnoreUnknown=1;"), ENV, &["ARGS: invalid pair \"\""])),
    ]);
}

#[test]
fn the_nodes_own_namespace_is_refused_before_anything_is_touched() {
    let scene = Scene::new();
    scene.node.sh("touch /run/netns/own && mount --bind /proc/self/ns/net /run/netns/own");
    for kind in types() {
        for path in
            ["/proc/self/ns/net", "/proc/thread-self/ns/net", "/run/netns/own", "/run/netns/../netns/own"]
        {
            for verb in ["ADD", "DEL", "CHECK"] {
                let request = scene.request(&kind).set("prevResult", scene.attached.clone());
                let request = request.env("CNI_NETNS", path).env("CNI_COMMAND", verb);
                let words = ["plugin's netns and netns from CNI_NETNS should not be the same"];
                assert_refused(&scene, &format!("{kind}: {verb} with {path}"), &request, NETNS, &words);
            }
        }
    }
}

#[test]
fn a_namespace_that_is_none_is_refused() {
    let scene = Scene::new();
    scene.node.sh("echo > /run/test/file; mkdir /run/test/folder");
    let paths = [
        ("/run/netns/nowhere", "No such file or directory"),
        ("/run/test/file", "not a network namespace"),
        ("/run/test/folder", "not a network namespace"),
        ("/run/test/file/net", "Not a directory"),
        ("/dev/null", "not a network namespace"),
        ("relative", "No such file or directory"),
    ];
    // The others have nothing to do in it.
    for kind in ["bridge", "ptp", "loopback", "bandwidth", "tuning", "sbr"] {
        for (path, reason) in paths {
            let request = scene.request(kind).env("CNI_NETNS", path);
            assert_refused(
                &scene,
                &format!("{kind}: {path}"),
                &request,
                NETNS,
                &["failed to open netns", path, reason],
            );
        }
    }
    // Another kind of namespace is none of the network.
    for kind in ["bridge", "ptp", "loopback"] {
        let request = scene.request(kind).env("CNI_NETNS", "/proc/self/ns/uts");
        assert_refused(
            &scene,
            &format!("{kind}: a namespace of names"),
            &request,
            NETNS,
            &["/proc/self/ns/uts"],
        );
    }
}

#[test]
#[rustfmt::skip] // a table
fn verbs_that_came_later_are_refused_in_old_versions() {
    check_everywhere(&[
        ("CHECK in 0.3.1", (|r| r.env("CNI_COMMAND", "CHECK").set("cniVersion", json!("0.3.1")), VERSION, &[])),
        ("GC in 1.0.0", (|r| r.env("CNI_COMMAND", "GC"), VERSION, &["config version does not allow GC"])),
        ("STATUS in 1.0.0", (|r| r.env("CNI_COMMAND", "STATUS"), VERSION, &["config version does not allow STATUS"])),
    ]);
}

#[test]
fn a_gc_that_does_not_say_what_is_valid_is_refused() {
    let scene = Scene::new();
    // The others keep nothing that could be collected.
    for kind in ["bridge", "ptp", "host-local", "portmap", "bandwidth", "tuning", "firewall"] {
        let request = || scene.request(kind).env("CNI_COMMAND", "GC").set("cniVersion", json!("1.1.0"));
        let key = "cni.dev/valid-attachments";
        assert_refused(&scene, &format!("{kind}: no key"), &request(), CONFIG, &[key, "missing"]);
        for wrong in [json!(5), json!({}), json!(["blue"]), json!([{"containerID": 5, "ifname": "eth0"}])] {
            let mut spoilt = request();
            spoilt.config.as_mut().unwrap()[key] = wrong.clone();
            assert_refused(&scene, &format!("{kind}: {wrong}"), &spoilt, CONFIG, &[key]);
        }
    }
}

#[test]
fn a_check_without_a_result_is_refused() {
    let scene = Scene::new();
    // host-local has a record of its own, and loopback needs none.
    for kind in types().iter().filter(|kind| !matches!(kind.as_str(), "host-local" | "loopback")) {
        let request = scene.request(kind).without("prevResult").env("CNI_COMMAND", "CHECK");
        let request = request.env("CNI_CONTAINERID", "blue").env("CNI_NETNS", "/run/netns/blue");
        assert_refused(&scene, kind, &request, CONFIG, &["prevResult"]);
    }
}

#[test]
#[rustfmt::skip] // a table
fn configs_of_bridge_that_make_no_sense_are_refused() {
    check(&[
        ("bridge", "a name of 16 bytes", (|r| r.set("bridge", json!("br01234567890123")), CONFIG, &["bridge:", "too long"])),
        ("bridge", "a name with a slash", (|r| r.set("bridge", json!("../br0")), CONFIG, &["bridge:", "contains /"])),
        ("bridge", "a name that is a number", (|r| r.set("bridge", json!(5)), CONFIG, &["bridge:", "string"])),
        ("bridge", "a name with a NUL byte", (|r| r.set("bridge", json!("br\0")), CONFIG, &["bridge:"])),
        ("bridge", "a name that is no bridge's", (|r| r.set("bridge", json!("lo")), CONFIG, &["lo", "already exists but is not a bridge"])),
        ("bridge", "hairpin and promiscuous", (|r| r.set("hairpinMode", json!(true)).set("promiscMode", json!(true)), CONFIG, &["hairpinMode", "promiscMode"])),
        ("bridge", "VLAN 4095", (|r| r.set("vlan", json!(4095)), CONFIG, &["vlan", "4095", "4094"])),
        ("bridge", "VLAN -1", (|r| r.set("vlan", json!(-1)), CONFIG, &["vlan", "-1"])),
        ("bridge", "a VLAN in words", (|r| r.set("vlan", json!("ten")), CONFIG, &["vlan", "ten"])),
        ("bridge", "a trunk of nothing", (|r| r.set("vlanTrunk", json!([{}])), CONFIG, &["vlanTrunk[0]", "minID"])),
        ("bridge", "a trunk backwards", (|r| r.set("vlanTrunk", json!([{"id": 5}, {"minID": 9, "maxID": 8}])), CONFIG, &["vlanTrunk[1]", "minID 9 is greater than maxID 8"])),
        ("bridge", "a trunk to 4095", (|r| r.set("vlanTrunk", json!([{"minID": 1, "maxID": 4095}])), CONFIG, &["vlanTrunk[0]", "4095"])),
        ("bridge", "a trunk that is a number", (|r| r.set("vlanTrunk", json!(5)), CONFIG, &["vlanTrunk"])),
        ("bridge", "VLANs on a bridge that filters none", (|r| r.set("vlan", json!(10)), CONFIG, &["vlan", "br0"])),
        ("bridge", "an MTU below zero", (|r| r.set("mtu", json!(-1)), CONFIG, &["mtu", "-1"])),
        ("bridge", "an MTU beyond all", (|r| r.set("mtu", json!(1u64 << 40)), CONFIG, &["mtu", "1099511627776"])),
        ("bridge", "an MTU that the kernel does not take", (|r| r.set("mtu", json!(u32::MAX)), CONFIG, &["mtu", "4294967295"])),
        ("bridge", "an MTU in words", (|r| r.set("mtu", json!("large")), CONFIG, &["mtu", "large"])),
        ("bridge", "half an MTU", (|r| r.set("mtu", json!(1400.5)), CONFIG, &["mtu", "1400.5"])),
        ("bridge", "a switch that is neither", (|r| r.set("isGateway", json!("maybe")), CONFIG, &["isGateway", "maybe"])),
        ("bridge", "an unknown backend", (|r| r.set("ipMasqBackend", json!("ebtables")), CONFIG, &["ipMasqBackend", "ebtables"])),
        ("bridge", "a wrong MAC", (|r| r.env("CNI_ARGS", "MAC=02:00"), CONFIG, &["mac:", "02:00"])),
        ("bridge", "a MAC of a group", (|r| r.env("CNI_ARGS", "MAC=01:00:5e:00:00:01"), CONFIG, &["mac:", "group"])),
        ("bridge", "a MAC of zeros", (|r| r.set("runtimeConfig", json!({"mac": "00:00:00:00:00:00"})), CONFIG, &["mac:"])),
        ("bridge", "a MAC that is a number", (|r| r.set("runtimeConfig", json!({"mac": 5})), CONFIG, &["runtimeConfig.mac"])),
        ("bridge", "a runtimeConfig that is a list", (|r| r.set("runtimeConfig", json!([])), CONFIG, &["runtimeConfig"])),
        ("bridge", "addresses for an interface that is off", (|r| r.set("disableContainerInterface", json!(true)), CONFIG, &["ipam", "disableContainerInterface"])),
        ("bridge", "a gateway that the bridge is not", (|r| r.set("ipam.subnet", json!("10.99.0.0/24")), CONFIG, &["br0", "10.99.0.1/24"])),
        ("bridge", "an interface that is there", (|r| r.env("CNI_CONTAINERID", "other").env("CNI_NETNS", "/run/netns/blue"), INTERNAL, &["eth0", "already exists"])),
        ("bridge", "an attachment that is there", (|r| r.env("CNI_CONTAINERID", "blue").env("CNI_NETNS", "/run/netns/blue"), INTERNAL, &["eth0", "already exists"])),
        ("bridge", "ipam that is a number", (|r| r.set("ipam", json!(5)), CONFIG, &["ipam"])),
        ("bridge", "an ipam type that is a number", (|r| r.set("ipam.type", json!(5)), CONFIG, &["ipam.type"])),
        ("bridge", "an ipam type that nobody has", (|r| r.set("ipam.type", json!("nowhere")), CONFIG, &["nowhere", "path"])),
        ("bridge", "an ipam type that climbs", (|r| r.set("ipam.type", json!("../cni/static")), CONFIG, &["../cni/static"])),
        ("bridge", "itself as ipam", (|r| r.set("ipam.type", json!("bridge")), CONFIG, &["ipam.type", "bridge"])),
        ("bridge", "a neighbour as ipam", (|r| r.set("ipam.type", json!("ptp")), CONFIG, &["ipam.type", "ptp"])),
        ("bridge", "name servers that are a text", (|r| r.set("dns", json!("1.1.1.1")), CONFIG, &["dns"])),
    ]);
}

#[test]
#[rustfmt::skip] // a table
fn configs_of_ptp_and_loopback_that_make_no_sense_are_refused() {
    check(&[
        ("ptp", "no ipam", (|r| r.without("ipam"), CONFIG, &["ipam.type"])),
        ("ptp", "an empty ipam type", (|r| r.set("ipam.type", json!("")), CONFIG, &["ipam.type"])),
        ("ptp", "itself as ipam", (|r| r.set("ipam.type", json!("ptp")), CONFIG, &["ipam.type", "ptp"])),
        ("ptp", "a negative MTU", (|r| r.set("mtu", json!(-5)), CONFIG, &["mtu", "-5"])),
        ("ptp", "an MTU that the kernel does not take", (|r| r.set("mtu", json!(67)), CONFIG, &["mtu", "67"])),
        ("ptp", "an unknown backend", (|r| r.set("ipMasqBackend", json!(true)), CONFIG, &["ipMasqBackend"])),
        ("ptp", "an address without gateway", (|r| r.set("ipam", json!({"type": "static", "addresses": [{"address": "10.9.0.5/24"}]})), CONFIG, &["10.9.0.5/24", "gateway"])),
        ("ptp", "an address that is none", (|r| r.set("ipam", json!({"type": "static", "addresses": [{"address": "10.9.0.5"}]})), CONFIG, &["ipam.addresses[0].address", "10.9.0.5"])),
        ("ptp", "no address at all", (|r| r.set("ipam", json!({"type": "static"})), INTERNAL, &["static", "missing IP config"])),
        ("ptp", "an interface that is there", (|r| r.env("CNI_CONTAINERID", "other").env("CNI_NETNS", "/run/netns/blue"), INTERNAL, &["eth0", "already exists"])),
        ("ptp", "a route that leads nowhere", (|r| r.set("ipam.routes", json!([{"dst": "198.51.100.0/24", "gw": "203.0.113.1"}])), KERNEL, &["198.51.100.0/24"])),
    ]);
}

#[test]
#[rustfmt::skip] // a table
fn ranges_that_make_no_sense_are_refused() {
    check(&[
        ("host-local", "no ipam", (|r| r.without("ipam"), CONFIG, &["ipam"])),
        ("host-local", "no ranges", (|r| r.set("ipam", json!({"type": "host-local"})), CONFIG, &["no IP ranges specified"])),
        ("host-local", "an empty list", (|r| r.set("ipam", json!({"ranges": []})), CONFIG, &["no IP ranges specified"])),
        ("host-local", "an empty set", (|r| r.set("ipam", json!({"ranges": [[]]})), CONFIG, &["range set 0", "empty"])),
        ("host-local", "ranges that are no sets", (|r| r.set("ipam", json!({"ranges": ["10.0.0.0/8"]})), CONFIG, &["ipam.ranges[0]"])),
        ("host-local", "ranges that are a text", (|r| r.set("ipam", json!({"ranges": "10.0.0.0/8"})), CONFIG, &["ipam.ranges"])),
        ("host-local", "a range without subnet", (|r| r.set("ipam", json!({"ranges": [[{}]]})), CONFIG, &["ipam.ranges[0][0]", "subnet"])),
        ("host-local", "a subnet that is none", (|r| r.set("ipam.subnet", json!("10.7.0.0")), CONFIG, &["ipam.subnet", "10.7.0.0"])),
        ("host-local", "a subnet that is a number", (|r| r.set("ipam.subnet", json!(10)), CONFIG, &["ipam.subnet"])),
        ("host-local", "a prefix of 33", (|r| r.set("ipam.subnet", json!("10.7.0.0/33")), CONFIG, &["ipam.subnet", "10.7.0.0/33"])),
        ("host-local", "a huge prefix", (|r| r.set("ipam.subnet", json!("10.7.0.0/99999999999")), CONFIG, &["ipam.subnet", "99999999999"])),
        ("host-local", "a negative prefix", (|r| r.set("ipam.subnet", json!("10.7.0.0/-1")), CONFIG, &["ipam.subnet", "-1"])),
        ("host-local", "host bits", (|r| r.set("ipam.subnet", json!("10.7.0.5/24")), CONFIG, &["ipam.subnet", "10.7.0.5/24", "10.7.0.0"])),
        ("host-local", "a pool of /31", (|r| r.set("ipam.subnet", json!("10.7.0.0/31")), CONFIG, &["10.7.0.0/31", "too small"])),
        ("host-local", "a pool of /32", (|r| r.set("ipam.subnet", json!("10.7.0.0/32")), CONFIG, &["10.7.0.0/32", "too small"])),
        ("host-local", "a pool of /127", (|r| r.set("ipam.subnet", json!("fd00::/127")), CONFIG, &["fd00::/127", "too small"])),
        ("host-local", "a start outside", (|r| r.set("ipam.rangeStart", json!("10.8.0.1")), CONFIG, &["10.8.0.1", "10.7.0.0/24"])),
        ("host-local", "an end outside", (|r| r.set("ipam.rangeEnd", json!("10.8.0.1")), CONFIG, &["10.8.0.1", "10.7.0.0/24"])),
        ("host-local", "a start that is none", (|r| r.set("ipam.rangeStart", json!("first")), CONFIG, &["ipam.rangeStart", "first"])),
        ("host-local", "a range backwards", (|r| r.set("ipam.rangeStart", json!("10.7.0.9")).set("ipam.rangeEnd", json!("10.7.0.8")), CONFIG, &["10.7.0.9", "10.7.0.8"])),
        ("host-local", "a gateway that is none", (|r| r.set("ipam.gateway", json!("gw")), CONFIG, &["ipam.gateway", "gw"])),
        ("host-local", "a set of two families", (|r| r.set("ipam", json!({"ranges": [[{"subnet": "10.0.0.0/24"}, {"subnet": "fd00::/64"}]]})), CONFIG, &["ipam.ranges[0]"])),
        ("host-local", "ranges that overlap in a set", (|r| r.set("ipam", json!({"ranges": [[{"subnet": "10.0.0.0/24"}, {"subnet": "10.0.0.0/16"}]]})), CONFIG, &["ipam.ranges[0][0]", "ipam.ranges[0][1]", "overlap"])),
        ("host-local", "ranges that overlap between sets", (|r| r.set("ipam", json!({"ranges": [[{"subnet": "10.0.0.0/24"}], [{"subnet": "10.0.0.0/16"}]]})), CONFIG, &["overlap"])),
        ("host-local", "ranges of the runtime that overlap", (|r| r.set("runtimeConfig", json!({"ipRanges": [[{"subnet": "10.7.0.0/16"}]]})), CONFIG, &["overlap"])),
        ("host-local", "ranges of the runtime that are none", (|r| r.set("runtimeConfig", json!({"ipRanges": "all"})), CONFIG, &["runtimeConfig.ipRanges"])),
        ("host-local", "a route that is none", (|r| r.set("ipam.routes", json!([{"dst": "everywhere"}])), CONFIG, &["ipam.routes[0].dst", "everywhere"])),
        ("host-local", "a route without destination", (|r| r.set("ipam.routes", json!([{"gw": "10.7.0.1"}])), CONFIG, &["ipam.routes[0]", "dst"])),
        ("host-local", "a negative metric", (|r| r.set("ipam.routes", json!([{"dst": "0.0.0.0/0", "priority": -1}])), CONFIG, &["ipam.routes[0].priority"])),
        ("host-local", "two addresses of old versions", (|r| r.set("cniVersion", json!("0.2.0")).set("ipam", json!({"ranges": [[{"subnet": "10.0.0.0/24"}], [{"subnet": "10.1.0.0/24"}]]})), CONFIG, &["0.2.0", "1 address per family"])),
    ]);
}

#[test]
#[rustfmt::skip] // a table
fn requests_for_addresses_that_cannot_be_met_are_refused() {
    check(&[
        ("host-local", "an argument that is none", (|r| r.env("CNI_ARGS", "IP=ten"), ENV, &["IP=ten"])),
        ("host-local", "an unknown argument", (|r| r.env("CNI_ARGS", "FOO=1"), ENV, &["unknown args", "FOO=1"])),
        ("host-local", "an address from elsewhere", (|r| r.env("CNI_ARGS", "IP=10.8.0.9"), CONFIG, &["10.8.0.9"])),
        ("host-local", "the gateway's address", (|r| r.env("CNI_ARGS", "IP=10.7.0.1"), CONFIG, &["10.7.0.1", "gateway"])),
        ("host-local", "an address that is taken", (|r| r.env("CNI_ARGS", "IP=10.7.0.2"), INTERNAL, &["10.7.0.2", "not available"])),
        ("host-local", "two addresses of one range", (|r| r.set("runtimeConfig", json!({"ips": ["10.7.0.8", "10.7.0.9"]})), CONFIG, &["10.7.0.9"])),
        ("host-local", "an address of the runtime that is none", (|r| r.set("runtimeConfig", json!({"ips": ["10.7.0.8", "x"]})), CONFIG, &["runtimeConfig.ips[1]", "x"])),
        ("host-local", "an address of the config's author that is none", (|r| r.set("args", json!({"cni": {"ips": [7]}})), CONFIG, &["args.cni.ips[0]"])),
        ("host-local", "a second time", (|r| r.env("CNI_CONTAINERID", "blue"), INTERNAL, &["blue", "duplicate allocation is not allowed"])),
        ("host-local", "a full pool", (|r| r.set("ipam.rangeStart", json!("10.7.0.2")).set("ipam.rangeEnd", json!("10.7.0.2")), TRY_AGAIN, &["no IP addresses available", "10.7.0.2"])),
        ("bridge", "a full pool", (|r| r.set("ipam.rangeStart", json!("10.7.0.2")).set("ipam.rangeEnd", json!("10.7.0.2")), TRY_AGAIN, &["no IP addresses available", "10.7.0.2"])),
        ("ptp", "a full pool", (|r| r.set("ipam.rangeStart", json!("10.7.0.2")).set("ipam.rangeEnd", json!("10.7.0.2")), TRY_AGAIN, &["no IP addresses available", "10.7.0.2"])),
        ("host-local", "a pool of the gateway alone", (|r| r.set("ipam.rangeStart", json!("10.7.0.1")).set("ipam.rangeEnd", json!("10.7.0.1")), TRY_AGAIN, &["no IP addresses available"])),
        ("host-local", "a missing resolv.conf", (|r| r.set("ipam.resolvConf", json!("/run/test/nowhere")), IO, &["resolvConf", "/run/test/nowhere"])),
        ("host-local", "a missing range file", (|r| r.set("ipam", json!({"rangeFromFile": "/run/test/nowhere"})), IO, &["rangeFromFile", "/run/test/nowhere"])),
        ("host-local", "records in a device", (|r| r.set("ipam.dataDir", json!("/dev/null")), IO, &["/dev/null/net"])),
        ("host-local", "records in no folder that can be", (|r| r.set("ipam.dataDir", json!("/proc/networks")), IO, &["/proc/networks/net"])),
        ("host-local", "records in a folder with a NUL byte", (|r| r.set("ipam.dataDir", json!("/run/a\0b")), CONFIG, &["ipam.dataDir"])),
        ("host-local", "records in a number", (|r| r.set("ipam.dataDir", json!(5)), CONFIG, &["ipam.dataDir"])),
        ("static", "no ipam", (|r| r.without("ipam"), CONFIG, &["ipam"])),
        ("static", "an address without prefix", (|r| r.set("ipam.addresses", json!([{"address": "10.9.0.5"}])), CONFIG, &["ipam.addresses[0].address", "10.9.0.5"])),
        ("static", "an empty entry", (|r| r.set("ipam.addresses", json!([{}])), CONFIG, &["ipam.addresses[0].address"])),
        ("static", "addresses that are a text", (|r| r.set("ipam.addresses", json!("10.9.0.5/24")), CONFIG, &["ipam.addresses"])),
        ("static", "a gateway that is none", (|r| r.set("ipam.addresses", json!([{"address": "10.9.0.5/24", "gateway": "x"}])), CONFIG, &["ipam.addresses[0].gateway", "x"])),
        ("static", "an argument that is none", (|r| r.env("CNI_ARGS", "IP=10.9.0.6"), CONFIG, &["10.9.0.6", "CNI_ARGS"])),
        ("static", "a gateway in the arguments that is none", (|r| r.env("CNI_ARGS", "GATEWAY=x"), ENV, &["GATEWAY", "x"])),
        ("static", "an unknown argument", (|r| r.env("CNI_ARGS", "FOO=1"), ENV, &["unknown args", "FOO=1"])),
        ("static", "an address of the runtime that is none", (|r| r.set("runtimeConfig", json!({"ips": ["x"]})), CONFIG, &["runtimeConfig.ips[0]", "x"])),
        ("static", "two addresses of old versions", (|r| r.set("cniVersion", json!("0.2.0")).env("CNI_ARGS", "IP=10.9.0.6/24"), CONFIG, &["0.2.0", "1 address per family"])),
    ]);
}

#[test]
#[rustfmt::skip] // a table
fn ports_that_cannot_be_mapped_are_refused() {
    check(&[
        ("portmap", "no result", (|r| r.without("prevResult"), CONFIG, &["prevResult"])),
        ("portmap", "port 0", (|r| r.set("runtimeConfig.portMappings", json!([{"hostPort": 0, "containerPort": 80}])), CONFIG, &["runtimeConfig.portMappings[0].hostPort", "0"])),
        ("portmap", "port 65536", (|r| r.set("runtimeConfig.portMappings", json!([{"hostPort": 80, "containerPort": 65536}])), CONFIG, &["portMappings[0].containerPort", "65536"])),
        ("portmap", "port -1", (|r| r.set("runtimeConfig.portMappings", json!([{"hostPort": -1, "containerPort": 80}])), CONFIG, &["portMappings[0].hostPort", "-1"])),
        ("portmap", "a port in words", (|r| r.set("runtimeConfig.portMappings", json!([{"hostPort": "http", "containerPort": 80}])), CONFIG, &["portMappings[0].hostPort", "http"])),
        ("portmap", "no port of the pod", (|r| r.set("runtimeConfig.portMappings", json!([{"hostPort": 80}])), CONFIG, &["portMappings[0]", "containerPort"])),
        ("portmap", "an unknown protocol", (|r| r.set("runtimeConfig.portMappings", json!([{"hostPort": 80, "containerPort": 80, "protocol": "icmp"}])), CONFIG, &["portMappings[0].protocol", "icmp"])),
        ("portmap", "a host address that is none", (|r| r.set("runtimeConfig.portMappings", json!([{"hostPort": 80, "containerPort": 80, "hostIP": "all"}])), CONFIG, &["portMappings[0].hostIP", "all"])),
        ("portmap", "a port twice", (|r| r.set("runtimeConfig.portMappings", json!([{"hostPort": 80, "containerPort": 80}, {"hostPort": 80, "containerPort": 81}])), CONFIG, &["portMappings[1]", "80/tcp", "twice"])),
        ("portmap", "ports that are no list", (|r| r.set("runtimeConfig.portMappings", json!({"hostPort": 80})), CONFIG, &["runtimeConfig.portMappings"])),
        ("portmap", "an unknown backend", (|r| r.set("backend", json!("ebtables")), CONFIG, &["backend", "ebtables"])),
        ("portmap", "a backend that is a number", (|r| r.set("backend", json!(5)), CONFIG, &["backend"])),
        ("portmap", "bit 32", (|r| r.set("markMasqBit", json!(32)), CONFIG, &["markMasqBit", "32"])),
        ("portmap", "bit -1", (|r| r.set("markMasqBit", json!(-1)), CONFIG, &["markMasqBit", "-1"])),
        ("portmap", "two ways to mark", (|r| r.set("markMasqBit", json!(5)).set("externalSetMarkChain", json!("MARK")), CONFIG, &["externalSetMarkChain", "markMasqBit"])),
        ("portmap", "conditions that are not understood", (|r| r.set("conditionsV4", json!(["-m", "physdev"])), CONFIG, &["conditionsV4", "-m physdev"])),
        ("portmap", "half a condition", (|r| r.set("conditionsV6", json!(["!", "-d"])), CONFIG, &["conditionsV6", "! -d"])),
        ("portmap", "a condition of the other family", (|r| r.set("conditionsV4", json!(["-d", "fd00::/64"])), CONFIG, &["conditionsV4", "fd00::/64"])),
        ("portmap", "conditions that are a text", (|r| r.set("conditionsV4", json!("-d 10.0.0.0/8")), CONFIG, &["conditionsV4"])),
        ("portmap", "a switch that is neither", (|r| r.set("snat", json!("maybe")), CONFIG, &["snat", "maybe"])),
    ]);
}

#[test]
fn a_port_that_is_taken_is_refused_with_its_holder() {
    let scene = Scene::new();
    let other = scene.node.pod("other");
    let mut portmap = good("portmap");
    portmap["runtimeConfig"]["portMappings"] = json!([{"hostPort": 8080, "containerPort": 81}]);
    Chain::new(&ours(), "net", &[good("bridge"), portmap]).add(&scene.node, &other);
    let words = ["host port 8080/tcp is taken by net/other/eth0"];
    assert_refused(&scene, "portmap: a taken port", &scene.request("portmap"), PORT_TAKEN, &words);
}

#[test]
#[rustfmt::skip] // a table
fn limits_sysctls_and_rules_that_make_no_sense_are_refused() {
    check(&[
        ("bandwidth", "no result", (|r| r.without("prevResult"), CONFIG, &["prevResult"])),
        ("bandwidth", "a rate without burst", (|r| r.set("egressRate", json!(8000)), CONFIG, &["egressRate", "egressBurst"])),
        ("bandwidth", "a burst without rate", (|r| r.set("egressBurst", json!(8000)), CONFIG, &["egressBurst", "egressRate"])),
        ("bandwidth", "a negative rate", (|r| r.set("ingressRate", json!(-1)), CONFIG, &["ingressRate", "-1"])),
        ("bandwidth", "a rate of 7 bits", (|r| r.set("ingressRate", json!(7)), CONFIG, &["ingressRate", "7"])),
        ("bandwidth", "a rate in words", (|r| r.set("ingressRate", json!("10M")), CONFIG, &["ingressRate", "10M"])),
        ("bandwidth", "a burst beyond all", (|r| r.set("ingressBurst", json!(u64::MAX)), CONFIG, &["ingressBurst"])),
        ("bandwidth", "a rate beyond all numbers", (|r| r.set("ingressRate", json!(1e30)), CONFIG, &["ingressRate"])),
        ("bandwidth", "limits of the runtime that are none", (|r| r.without("ingressRate").without("ingressBurst").set("runtimeConfig", json!({"bandwidth": 5})), CONFIG, &["runtimeConfig.bandwidth"])),
        ("bandwidth", "an interface that is no cable", (|r| r.env("CNI_IFNAME", "lo"), CONFIG, &["lo"])),
        ("bandwidth", "an interface that is not there", (|r| r.env("CNI_IFNAME", "eth7"), KERNEL, &["eth7"])),
        ("bandwidth", "an old version", (|r| r.set("cniVersion", json!("0.2.0")), VERSION, &["incompatible CNI versions"])),
        ("tuning", "no result", (|r| r.without("prevResult"), CONFIG, &["prevResult"])),
        ("tuning", "a sysctl of the node", (|r| r.set("sysctl", json!({"kernel.panic": "1"})), CONFIG, &["kernel.panic"])),
        ("tuning", "a sysctl that climbs", (|r| r.set("sysctl", json!({"../kernel/panic": "1"})), CONFIG, &["../kernel/panic"])),
        ("tuning", "a sysctl that climbs from net", (|r| r.set("sysctl", json!({"net/../kernel/panic": "1"})), IO, &["net/kernel/panic"])),
        ("tuning", "a sysctl without a name", (|r| r.set("sysctl", json!({"net": "1"})), CONFIG, &["\"net\""])),
        ("tuning", "a sysctl that is not there", (|r| r.set("sysctl", json!({"net.core.somaxconn": "4000", "net.nowhere": "1"})), IO, &["net/nowhere"])),
        ("tuning", "a sysctl with a NUL byte", (|r| r.set("sysctl", json!({"net.a\0b": "1"})), CONFIG, &["net.a"])),
        ("tuning", "a sysctl twice", (|r| r.set("sysctl", json!({"net.core.somaxconn": "1", "net/core/somaxconn": "2"})), CONFIG, &["duplicated", "net/core/somaxconn"])),
        ("tuning", "a sysctl's value that the kernel does not take", (|r| r.set("sysctl", json!({"net.core.somaxconn": "many"})), IO, &["somaxconn", "many"])),
        ("tuning", "a sysctl's value that is a number", (|r| r.set("sysctl", json!({"net.core.somaxconn": 5})), CONFIG, &["sysctl.net.core.somaxconn"])),
        ("tuning", "sysctls that are a list", (|r| r.set("sysctl", json!(["net.core.somaxconn=1"])), CONFIG, &["sysctl"])),
        ("tuning", "a wrong MAC", (|r| r.set("mac", json!("02:00")), CONFIG, &["MAC", "02:00"])),
        ("tuning", "a MAC of a group", (|r| r.set("mac", json!("01:00:5e:00:00:01")), CONFIG, &["MAC", "group"])),
        ("tuning", "a negative MTU", (|r| r.set("mtu", json!(-1)), CONFIG, &["mtu", "-1"])),
        ("tuning", "an MTU that the kernel does not take", (|r| r.set("mtu", json!(70_000)), KERNEL, &["MTU", "70000"])),
        ("tuning", "a negative queue", (|r| r.set("txQLen", json!(-1)), CONFIG, &["txQLen", "-1"])),
        ("tuning", "a queue beyond all", (|r| r.set("txQLen", json!(1u64 << 40)), CONFIG, &["txQLen"])),
        ("tuning", "an unknown argument", (|r| r.env("CNI_ARGS", "FOO=1"), ENV, &["unknown args", "FOO=1"])),
        ("tuning", "an interface that is not there", (|r| r.env("CNI_IFNAME", "eth7"), KERNEL, &["eth7"])),
        ("tuning", "a folder with a NUL byte", (|r| r.set("dataDir", json!("/run/a\0b")), CONFIG, &["dataDir"])),
        ("tuning", "a folder that is a number", (|r| r.set("dataDir", json!(5)), CONFIG, &["dataDir"])),
        ("tuning", "a folder in a device", (|r| r.set("dataDir", json!("/dev/null")), IO, &["/dev/null"])),
        ("firewall", "no result", (|r| r.without("prevResult"), CONFIG, &["prevResult"])),
        ("firewall", "an unknown backend", (|r| r.set("backend", json!("pf")), CONFIG, &["backend", "pf"])),
        ("firewall", "an unknown policy", (|r| r.set("ingressPolicy", json!("closed")), CONFIG, &["ingressPolicy", "closed"])),
        ("firewall", "a policy that is a switch", (|r| r.set("ingressPolicy", json!(true)), CONFIG, &["ingressPolicy"])),
        ("firewall", "a chain's name that is too long", (|r| r.set("iptablesAdminChainName", json!("A".repeat(300))), CONFIG, &["iptablesAdminChainName"])),
        ("firewall", "a chain's name with a NUL byte", (|r| r.set("iptablesAdminChainName", json!("A\0B")), CONFIG, &["iptablesAdminChainName"])),
        ("firewall", "an old version", (|r| r.set("cniVersion", json!("0.3.1")), VERSION, &["incompatible CNI versions"])),
        ("sbr", "no result", (|r| r.without("prevResult"), CONFIG, &["prevResult"])),
        ("sbr", "a result without addresses", (|r| r.set("prevResult.ips", json!([])), CONFIG, &["No IP addresses supplied", "eth0"])),
        ("sbr", "an interface that is not there", (|r| r.env("CNI_IFNAME", "eth7").set("prevResult.interfaces", json!([])).set("prevResult.ips", json!([{"address": "10.7.0.9/24"}])), KERNEL, &["eth7"])),
        ("sbr", "a negative table", (|r| r.set("table", json!(-1)), CONFIG, &["table", "-1"])),
        ("sbr", "table 0", (|r| r.set("table", json!(0)), CONFIG, &["table", "0"])),
        ("sbr", "a table beyond all", (|r| r.set("table", json!(1u64 << 32)), CONFIG, &["table"])),
        ("sbr", "a gateway that is none", (|r| r.set("gateways", json!(["gw"])), CONFIG, &["gateway", "gw"])),
        ("sbr", "two gateways of a family", (|r| r.set("gateways", json!(["10.7.0.1", "10.7.0.2"])), CONFIG, &["gateways", "10.7.0.2"])),
        ("sbr", "a gateway that cannot be reached", (|r| r.set("gateways", json!(["203.0.113.1"])), KERNEL, &["203.0.113.1"])),
    ]);
}

/// A config may be changed, or spoilt, while pods of it are running: they are still to be let go.
#[test]
fn a_config_that_has_become_another_or_nonsense_keeps_no_pod() {
    type Spoil = fn(Value) -> Value;
    let spoilt: &[(&str, Spoil)] = &[
        ("bridge", |c| with(c, "vlan", json!(4095))),
        ("bridge", |c| with(c, "mtu", json!("large"))),
        ("bridge", |c| with(c, "bridge", json!(5))),
        ("bridge", |c| with(c, "ipMasqBackend", json!("ebtables"))),
        ("ptp", |c| with(c, "mtu", json!(-1))),
        ("host-local", |c| with(c, "ipam", json!({"type": "host-local", "subnet": "nonsense"}))),
        ("host-local", |c| with(c, "ipam", json!({"type": "host-local", "ranges": 5}))),
        ("portmap", |c| with(c, "backend", json!("ebtables"))),
        ("portmap", |c| with(c, "conditionsV4", json!(["-m", "physdev"]))),
        ("portmap", |c| with(c, "runtimeConfig", json!({"portMappings": [{"hostPort": 0}]}))),
        ("portmap", |c| with(c, "runtimeConfig", json!([]))),
        ("portmap", |c| with(c, "conditionsV4", json!(["!", "-d", "192.0.2.0/24"]))),
        ("portmap", |c| with(c, "snat", json!(false))),
        ("portmap", |c| with(c, "masqAll", json!(true))),
        ("bridge", |c| with(c, "ipMasq", json!(false))),
        ("bridge", |c| with(c, "bridge", json!("br1"))),
        ("bandwidth", |c| with(c, "ingressRate", json!("fast"))),
        ("bandwidth", |c| with(with(c, "ingressRate", json!(0)), "ingressBurst", json!(0))),
        ("tuning", |c| with(c, "sysctl", json!({}))),
        ("firewall", |c| with(c, "ingressPolicy", json!("closed"))),
        ("tuning", |c| with(c, "sysctl", json!(5))),
        ("tuning", |c| with(c, "mac", json!("02:00"))),
        ("sbr", |c| with(c, "table", json!("main"))),
        ("static", |c| with(c, "ipam", json!({"type": "static", "addresses": 5}))),
    ];
    for (kind, spoil) in spoilt {
        let node = Node::new();
        let plugins = if is_chained(kind) { vec![good("bridge"), good(kind)] } else { vec![good(kind)] };
        let chain = Chain::new(&ours(), "net", &plugins);
        let (first, pod) = (node.pod("first"), node.pod("blue"));
        let result = chain.add(&node, &first);
        chain.del(&node, &first, Some(&result));
        let before = node.state(&pod);
        let result = chain.add(&node, &pod);
        let mut nonsense = chain.clone();
        let last = nonsense.plugins.len() - 1;
        nonsense.plugins[last] = spoil(nonsense.plugins[last].clone());
        nonsense.del(&node, &pod, Some(&result));
        assert_same(&before, &node.state(&pod), &format!("{}", nonsense.plugins[last]));
    }
}

fn with(mut config: Value, key: &str, value: Value) -> Value {
    config[key] = value;
    config
}
