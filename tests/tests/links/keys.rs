//! The keys of the configs, one by one.

use podwire_tests::{assert_same, Invocation, Node, Pod, GO};

use super::*;

fn refusal(node: &Node, pod: &Pod, config: &Value) -> (u64, String) {
    let before = node.state(pod);
    let said = network("net", config).try_add(node, pod).expect_err("an error").error();
    assert_same(&before, &node.state(pod), &config.to_string());
    said
}

#[test]
fn the_hardware_address_is_the_runtimes_then_the_arguments_then_the_configs() {
    for kind in ["macvlan", "dummy"].into_iter().filter(|kind| needs(kind)) {
        let (node, _) = node_for(kind);
        let (conf, args, runtime) = ("02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:03");
        for (n, (keys, env, expected)) in [
            (json!({"mac": conf}), "", conf),
            (json!({"mac": conf}), "IgnoreUnknown=1;MAC=02:00:00:00:00:02", args),
            (
                json!({"mac": conf, "runtimeConfig": {"mac": runtime}}),
                "IgnoreUnknown=1;MAC=02:00:00:00:00:02",
                runtime,
            ),
            (json!({"runtimeConfig": {"mac": runtime}}), "", runtime),
        ]
        .into_iter()
        .enumerate()
        {
            let pod = node.pod(&format!("pod{n}"));
            let chain = network("net", &with(config(kind, &[V4]), keys));
            let call =
                Invocation::new(&node, &chain.path, "ADD", &pod, &chain.config(0)).env("CNI_ARGS", env);
            let result = call.run().result();
            assert_eq!(result["interfaces"][0]["mac"], expected, "{kind}");
            assert_eq!(link(&node, &pod, "eth0")["address"], expected, "{kind}");
            chain.del(&node, &pod, Some(&result));
        }
    }
}

#[test]
fn the_mtu_is_the_configs_or_the_masters_and_no_larger() {
    for kind in kinds() {
        let (node, _) = node_for(kind);
        let pod = node.pod("blue");
        node.sh("ip link set uplink mtu 1450");
        let sizes: &[(u64, u64)] =
            if kind == "dummy" { &[(0, 1500), (9000, 9000)] } else { &[(0, 1450), (1400, 1400)] };
        for (mtu, expected) in sizes {
            let chain = network("net", &with(config(kind, &[V4]), json!({"mtu": mtu})));
            let result = chain.add(&node, &pod);
            assert_eq!(link(&node, &pod, "eth0")["mtu"], *expected, "{kind}");
            assert_eq!(result["interfaces"][0]["mtu"], *expected, "{kind}");
            chain.check(&node, &pod, &result).unwrap_or_else(|said| panic!("{kind}: {}", said.stdout));
            chain.del(&node, &pod, Some(&result));
        }
        if kind != "dummy" {
            let (code, msg) = refusal(&node, &pod, &with(config(kind, &[V4]), json!({"mtu": 1451})));
            assert!(
                code == 7 && msg.contains("invalid MTU 1451, must be [0, master MTU(1450)]"),
                "{kind}: {msg}"
            );
        }
    }
}

#[test]
fn the_broadcast_queue_is_as_long_as_asked() {
    let (node, _) = node();
    let (chain, pod) =
        (network("net", &with(config("macvlan", &[V4]), json!({"bcqueuelen": 2000}))), node.pod("blue"));
    let result = chain.add(&node, &pod);
    assert_eq!(link(&node, &pod, "eth0")["linkinfo"]["info_data"]["bcqueuelen"], 2000);
    chain.check(&node, &pod, &result).unwrap_or_else(|said| panic!("{}", said.stdout));
}

#[test]
fn passthru_has_the_masters_address() {
    let (node, _) = node();
    let (chain, pod) =
        (network("net", &with(config("macvlan", &[V4]), json!({"mode": "passthru"}))), node.pod("blue"));
    let result = chain.add(&node, &pod);
    assert_eq!(result["interfaces"][0]["mac"], node.json("ip -j link show uplink")[0]["address"]);
    assert!(node.pings(Some(&pod), "10.5.0.1"));
    chain.check(&node, &pod, &result).unwrap_or_else(|said| panic!("{}", said.stdout));
    chain.del(&node, &pod, Some(&result));
    assert!(!has(&node, &pod, "eth0"));
}

#[test]
fn without_a_master_it_is_the_default_routes() {
    for kind in ["macvlan", "ipvlan"].into_iter().filter(|kind| needs(kind)) {
        let (node, outside) = node_for(kind);
        let mut config = config(kind, &[V4]);
        config.as_object_mut().unwrap().remove("master");
        let pod = node.pod("blue");
        let (code, msg) = refusal(&node, &pod, &config);
        assert!(code == 7 && msg.contains("no default route interface found"), "{kind}: {code} {msg}");
        node.sh("ip link add other type veth peer name end; ip link set other up; ip link set end up
             ip address add 10.9.0.1/24 dev other; ip route add default via 10.9.0.2 metric 50
             ip address add 10.5.0.3/24 dev uplink; ip route add default via 10.5.0.1 metric 20");
        let result = network("net", &config).add(&node, &pod);
        assert!(node.pings(Some(&outside), address(&result, 0)), "{kind}");
    }
}

#[test]
fn name_servers_of_the_ipam_stay_unless_the_config_has_its_own() {
    for kind in kinds() {
        let (node, _) = node_for(kind);
        let pod = node.pod("blue");
        let leased = json!({"nameservers": ["10.5.0.53"], "search": ["leased"]});
        let mut config = fixed(kind, "10.5.0.9/24");
        config["ipam"]["dns"] = leased.clone();
        let chain = network("net", &config);
        let result = chain.add(&node, &pod);
        assert_eq!(result["dns"], leased, "{kind}");
        chain.del(&node, &pod, Some(&result));
        let own = json!({"nameservers": ["10.5.0.54"]});
        let result = network("net", &with(config, json!({"dns": own}))).add(&node, &pod);
        assert_eq!(result["dns"], own, "{kind}");
    }
}

#[test]
fn a_chained_ipvlan_takes_over_master_and_addresses() {
    if !needs("ipvlan") {
        return;
    }
    let (node, outside) = node();
    let pod = node.pod("blue");
    let before = node.state(&pod);
    let prev = json!({"cniVersion": "1.1.0", "interfaces": [{"name": "uplink"}],
        "ips": [{"address": "10.5.0.9/24", "gateway": "10.5.0.1", "interface": 0}],
        "routes": [{"dst": "198.51.100.0/24"}], "dns": {"nameservers": ["10.5.0.53"]}});
    let chain = network("net", &json!({"type": "ipvlan"}));
    let call = |verb: &str, prev: &Value| {
        Invocation::new(&node, &chain.path, verb, &pod, &chain.config(0)).prev(prev)
    };
    let result = call("ADD", &prev).run().result();
    assert_eq!(result["interfaces"].as_array().map(Vec::len), Some(1), "{result}");
    assert_eq!(result["interfaces"][0]["name"], "eth0");
    assert_eq!((&result["ips"][0]["address"], &result["dns"]), (&json!("10.5.0.9/24"), &prev["dns"]));
    assert!(node.pings(Some(&outside), "10.5.0.9"));
    call("CHECK", &result).run().result();
    call("DEL", &result).run().result();
    assert_same(&before, &node.state(&pod), "chained");

    let many = with(
        prev.clone(),
        json!({"interfaces": [{"name": "uplink"}, {"name": "eth0", "sandbox": pod.netns}]}),
    );
    let (code, msg) = call("ADD", &many).run().error();
    assert!(code == 7 && msg.starts_with("chained master failure"), "{code} {msg}");
    call("DEL", &many).run().result();
    let none = with(prev, json!({"ips": []}));
    let (code, msg) = call("ADD", &none).run().error();
    assert!(code == 7 && msg.starts_with("ipam.type"), "{code} {msg}");
}

#[test]
fn go_prints_the_same_result() {
    let state = |node: &Node, pod: &Pod| {
        let found = link(node, pod, "eth0");
        (
            found["linkinfo"].clone(),
            found["mtu"].clone(),
            node.sh("ip -n blue route; ip -n blue -6 route show table main"),
        )
    };
    for kind in children() {
        for subnets in [&[V4][..], &[V4, V6]] {
            let ((node, _), (twin, _)) = (node_for(kind), node_for(kind));
            let mut config = with(
                with(bare(kind), json!({"ipam": pool(subnets)})),
                json!({"mtu": 1400, "dns": {"nameservers": ["10.5.0.53"]}}),
            );
            if kind == "macvlan" {
                config["mac"] = json!("02:00:00:00:00:05");
            }
            let ours = Chain { version: "1.0.0".into(), ..network("net", &config) };
            let go = Chain { path: GO.into(), ..ours.clone() };
            let (pod, other) = (node.pod("blue"), twin.pod("blue"));
            let (its, his) = (ours.add(&node, &pod), go.add(&twin, &other));
            let plain = |result: &Value| {
                let mut result = result.clone();
                if kind != "macvlan" {
                    result["interfaces"][0]["mac"] = json!("of the master");
                }
                result
            };
            assert_eq!(plain(&its), plain(&his), "{kind}");
            twin.settle(std::slice::from_ref(&other));
            assert_eq!(state(&node, &pod), state(&twin, &other), "{kind}");
            // Each plugin checks and detaches what the other created.
            ours.check(&twin, &other, &his).unwrap_or_else(|said| panic!("{kind}: {}", said.stdout));
            go.check(&node, &pod, &its)
                .unwrap_or_else(|said| panic!("{kind}: {}{}", said.stdout, said.stderr));
            ours.del(&twin, &other, Some(&his));
            go.del(&node, &pod, Some(&its));
            assert!(!has(&twin, &other, "eth0") && !has(&node, &pod, "eth0"), "{kind}");
        }
    }
}
