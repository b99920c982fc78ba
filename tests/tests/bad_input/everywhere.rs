//! Input that all plugin types handle in the same way: standard input, names, versions, the environment.

use podwire_tests::{can_serve, types};
use serde_json::{json, Value};

use crate::{assert_refused, check_everywhere, Scene, CONFIG, DECODE, ENV, NETNS, VERSION};

/// Plugin types that need no other program: dhcp needs a server, which `tests/dhcp.rs` has, and calico-ipam needs
/// pools.
fn served() -> impl Iterator<Item = String> {
    types().into_iter().filter(|kind| !["dhcp", "calico-ipam"].contains(&kind.as_str()))
}

#[test]
fn the_unchanged_configs_work() {
    for kind in served().filter(|kind| can_serve(kind)) {
        let scene = Scene::new();
        let output = scene.request(&kind).run();
        assert_eq!(output.status, 0, "{kind}: {}{}", output.stdout, output.stderr);
    }
}

#[test]
#[rustfmt::skip] // a table
fn standard_input_without_a_config_fails() {
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
    for kind in served().filter(|kind| can_serve(kind)) {
        let request = scene.request(&kind).set("name", json!("n".repeat(300)));
        match kind.as_str() {
            "bridge" | "calico" | "flannel" | "ptp" | "host-local" | "macvlan" | "ipvlan" | "vlan"
            | "dummy" | "host-device" | "tap" => {
                assert_refused(&scene, &kind, &request, CONFIG, &["name", "300", "255"]);
                // So DEL must succeed.
                assert_eq!(request.env("CNI_COMMAND", "DEL").run().status, 0);
            }
            // These plugins create nothing that contains the whole name.
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
        ("/run/netns/nowhere", "no such file or directory"),
        ("/run/test/file", "not a network namespace"),
        ("/run/test/folder", "not a network namespace"),
        ("/run/test/file/net", "not a directory"),
        ("/dev/null", "not a network namespace"),
        ("relative", "no such file or directory"),
    ];
    // The other plugins do not use it.
    for kind in [
        "flannel",
        "dhcp",
        "bridge",
        "calico",
        "ptp",
        "macvlan",
        "ipvlan",
        "vlan",
        "dummy",
        "loopback",
        "bandwidth",
        "tuning",
        "sbr",
        "host-device",
        "tap",
        "vrf",
    ] {
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
    // A namespace of another kind is not a network namespace.
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
fn a_gc_without_valid_attachments_fails() {
    let scene = Scene::new();
    // noop responds as its file says.
    for kind in types().iter().filter(|kind| *kind != "noop") {
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
    // host-local has its own record, and the others need none.
    let content = ["debug", "host-local", "loopback", "noop"];
    for kind in types().iter().filter(|kind| !content.contains(&kind.as_str())) {
        let request = scene.request(kind).without("prevResult").env("CNI_COMMAND", "CHECK");
        let request = request.env("CNI_CONTAINERID", "blue").env("CNI_NETNS", "/run/netns/blue");
        // The Go plugin's text.
        let text = if kind == "bandwidth" { "must be called as a chained plugin" } else { "prevResult" };
        assert_refused(&scene, kind, &request, CONFIG, &[text]);
    }
}
