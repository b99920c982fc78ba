//! tap: the owner of the device, the program that opens it, and invalid configs.

use podwire_tests::{assert_same, needs, Invocation, Node};
use serde_json::{json, Value};

use crate::relay::{Relay, PLAIN, QUEUE};
use crate::{link, network, refusal, status};

fn tap(more: Value) -> Value {
    let mut config = json!({"type": "tap"});
    for (key, value) in more.as_object().expect("an object") {
        config[key] = value.clone();
    }
    config
}

#[test]
fn the_device_is_as_the_config_has_it() {
    if !needs("tun") {
        return;
    }
    let node = Node::new();
    for (n, (more, multi_queue, user, group)) in [
        (json!({}), false, Value::Null, Value::Null),
        (json!({"owner": 0}), false, json!("root"), Value::Null),
        (json!({"group": 5678}), false, Value::Null, json!(5678)),
        (json!({"owner": 1234, "group": 5678, "multiQueue": true}), true, json!(1234), json!(5678)),
    ]
    .into_iter()
    .enumerate()
    {
        let pod = node.pod(&format!("pod{n}"));
        let mut more = more;
        more["mac"] = json!("02:00:00:00:00:07");
        more["mtu"] = json!(1300);
        let chain = network("net", &tap(more.clone()));
        let result = chain.add(&node, &pod);
        let inside = link(&node, &pod, "eth0");
        let reported = &inside["linkinfo"]["info_data"];
        assert_eq!(inside["linkinfo"]["info_kind"], "tun");
        assert_eq!(
            (&reported["type"], &reported["persist"]),
            (&json!("tap"), &json!(true)),
            "{more}: {reported}"
        );
        assert_eq!(reported["multi_queue"], multi_queue, "{more}: {reported}");
        assert_eq!((&reported["user"], &reported["group"]), (&user, &group), "{more}: {reported}");
        assert_eq!((&inside["mtu"], &inside["address"]), (&json!(1300), &json!("02:00:00:00:00:07")));
        let expected =
            json!([{"name": "eth0", "mac": "02:00:00:00:00:07", "mtu": 1300, "sandbox": pod.netns}]);
        assert_eq!(result["interfaces"], expected);
        chain.check(&node, &pod, &result).unwrap_or_else(|failed| panic!("{more}: {}", failed.stdout));
        let open = |flags| Relay::open(&node, flags, &[&pod]).is_some();
        assert_eq!((open(PLAIN), open(QUEUE)), (!multi_queue, multi_queue), "{more}");
        chain.check(&node, &pod, &result).expect("CHECK after a program had it open");
        chain.del(&node, &pod, Some(&result));
        assert!(!node.can(&format!("ip -n {} link show eth0", pod.name)));
    }
}

#[test]
fn only_its_owner_can_open_it() {
    if !needs("tun") {
        return;
    }
    let node = Node::new();
    let pod = node.pod("blue");
    network("net", &tap(json!({"owner": 1234}))).add(&node, &pod);
    // Every user can open this copy of /dev/net/tun.
    node.sh("mkdir /run/test/dev; mknod -m 666 /run/test/dev/tun c 10 200; mount --bind /run/test/dev/tun /dev/net/tun");
    let open = |user: u32| {
        let script = r#"open(T, "+<", "/dev/net/tun") or die; my $eth0 = pack("a16 S x22", "eth0", 0x1002);
            ioctl(T, 0x400454ca, $eth0) or die"#;
        let as_user =
            format!("setpriv --reuid {user} --regid 100 --clear-groups --inh-caps=-all perl -e '{script}'");
        node.can(&format!("ip netns exec blue {as_user}"))
    };
    assert!(open(1234), "the owner");
    assert!(!open(1235), "another");
}

#[test]
fn the_runtime_and_the_arguments_may_choose_the_hardware_address() {
    if !needs("tun") {
        return;
    }
    let node = Node::new();
    let pod = node.pod("blue");
    let (config, args, runtime) = ("02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:03");
    for (with_args, with_runtime, expected) in
        [(false, false, config), (true, false, args), (true, true, runtime)]
    {
        let mut all = json!({"mac": config});
        if with_runtime {
            all["runtimeConfig"] = json!({"mac": runtime});
        }
        let chain = network("net", &tap(all));
        let mut call = Invocation::new(&node, &chain.path, "ADD", &pod, &chain.config(0));
        if with_args {
            call = call.env("CNI_ARGS", &format!("IgnoreUnknown=1;MAC={args}"));
        }
        assert_eq!(call.run().result()["interfaces"][0]["mac"], expected);
        chain.del(&node, &pod, None);
    }
}

#[test]
fn it_becomes_a_port_of_a_bridge_in_the_pod() {
    if !needs("tun") {
        return;
    }
    let node = Node::new();
    let (pod, other) = (node.pod("blue"), node.pod("other"));
    node.sh("ip -n blue link add br0 type bridge; ip -n blue link set br0 up
         ip -n blue address add 10.5.0.9/24 dev br0; ip -n blue -6 address add fd05::9/64 dev br0 nodad");
    let chain = network("net", &tap(json!({"bridge": "br0"})));
    let result = chain.add(&node, &pod);
    assert_eq!(link(&node, &pod, "eth0")["master"], "br0");
    let pool =
        json!({"type": "static", "addresses": [{"address": "10.5.0.8/24"}, {"address": "fd05::8/64"}]});
    network("net", &tap(json!({"ipam": pool}))).add(&node, &other);
    let _relay = Relay::open(&node, PLAIN, &[&pod, &other]).expect("both can be opened");
    assert!(node.pings(Some(&other), "10.5.0.9") && node.pings(Some(&other), "fd05::9"));

    chain.check(&node, &pod, &result).expect("CHECK");
    node.sh("ip -n blue link set eth0 nomaster");
    let (_, text) = chain.check(&node, &pod, &result).expect_err("no port").error();
    assert!(text.contains("not a port of bridge br0"), "{text}");
    node.sh("ip -n blue link delete br0");
    let (_, text) = chain.check(&node, &pod, &result).expect_err("no bridge").error();
    assert!(text.contains("the pod has no bridge \"br0\""), "{text}");
    chain.del(&node, &pod, Some(&result));
}

#[test]
fn invalid_devices_fail_and_leave_nothing() {
    if !needs("tun") {
        return;
    }
    let node = Node::new();
    let pod = node.pod("blue");
    node.sh("ip -n blue link add plain type veth peer name plain2");
    let before = node.state(&pod);
    for (more, code, text) in [
        (json!({"mtu": 60}), 7, "mtu: 60"),
        (json!({"mac": "01:00:00:00:00:01"}), 7, "mac: 01:00:00:00:00:01 is a group's"),
        (json!({"mac": "x"}), 7, "invalid args x for MAC addr: "),
        (json!({"owner": -1}), 7, "owner"),
        (json!({"bridge": "br7"}), 7, "bridge: the pod has no bridge \"br7\""),
        (json!({"bridge": "plain"}), 7, "bridge: \"plain\" in the pod is not a bridge but veth"),
        (json!({"ipam": {"type": "static", "addresses": [{"address": "10.5.0.8"}]}}), 7, "in CIDR notation"),
        (
            json!({"ipam": {"type": "static", "addresses": [{"address": "10.5.0.8/24"}],
                 "routes": [{"dst": "198.51.100.0/24", "gw": "203.0.113.9"}]}}),
            100,
            "configure interface eth0",
        ),
    ] {
        let (found, said) = refusal(&node, &pod, &tap(more.clone()));
        assert!(found == code && said.contains(text), "{more}: {found} {said}");
        assert_same(&before, &node.state(&pod), &more.to_string());
    }
    // Without SELinux the context cannot be set, and a device without it would be open to others.
    if !std::path::Path::new("/sys/fs/selinux/enforce").exists() {
        let (code, said) =
            refusal(&node, &pod, &tap(json!({"selinuxContext": "system_u:system_r:svirt_t:s0"})));
        assert!(code == 7 && said.starts_with("selinuxContext: "), "{said}");
    }
}

#[test]
fn a_foreign_device_is_neither_taken_over_nor_deleted() {
    if !needs("tun") {
        return;
    }
    let node = Node::new();
    let pod = node.pod("blue");
    network("one", &tap(json!({}))).add(&node, &pod);
    let before = node.state(&pod);
    let two = network("two", &tap(json!({})));
    let (_, text) = two.try_add(&node, &pod).expect_err("eth0 is taken").error();
    assert!(text.starts_with("failed to create tap: the pod has an interface eth0"), "{text}");
    two.del(&node, &pod, None);
    assert_same(&before, &node.state(&pod), "another network's");
}

#[test]
fn status_fails_without_dev_net_tun() {
    let node = Node::new();
    let chain = network("net", &tap(json!({})));
    node.sh("mount -t tmpfs none /dev/net");
    let (code, text) = status(&node, &chain).error();
    assert!(code == 50 && text.contains("/dev/net/tun"), "{code} {text}");
    let (_, text) = chain.try_add(&node, &node.pod("blue")).expect_err("no /dev/net/tun").error();
    assert!(text.contains("create TAP device eth0: open /dev/net/tun"), "{text}");
}
