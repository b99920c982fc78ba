//! bandwidth against the real kernel, read back with `ip` and `tc`.

#![allow(clippy::unwrap_used)] // A test that cannot go on says so.

mod test_pod;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use podwire_cni_plugin::{Command, Source};
use podwire_plugins::bandwidth::Bandwidth;
use serde_json::{json, Value};
use test_pod::{call, collect_until, go, json, run, with_pod, Pod};

const MBIT: u64 = 1_000_000;

fn config(prev: &Value) -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net", "type": "bandwidth", "prevResult": prev,
        "ingressRate": 8 * MBIT, "ingressBurst": 800_000, "egressRate": 16 * MBIT, "egressBurst": 1_600_000,
    })
}

fn ifb_devices() -> Vec<String> {
    let all = json("ip -j link show type ifb");
    all.as_array().unwrap().iter().filter_map(|link| Some(link["ifname"].as_str()?.to_string())).collect()
}

/// The token bucket of a device: rate, burst.
fn bucket(device: &str) -> Option<(u64, u64)> {
    let all = json(&format!("tc -j qdisc show dev {device}"));
    let options = all.as_array().unwrap().iter().find(|one| one["kind"] == "tbf")?["options"].clone();
    Some((options["rate"].as_u64()?, options["burst"].as_u64()?))
}

fn redirect(device: &str) -> Option<String> {
    let all = json(&format!("tc -j filter show dev {device} ingress"));
    let action = |filter: &Value| Some(filter["options"]["actions"][0]["to_dev"].as_str()?.to_string());
    all.as_array().unwrap().iter().find_map(action)
}

fn add(pod: &Pod, ifname: &str, config: &Value) -> Value {
    pod.call(&Bandwidth, Command::Add, ifname, config).unwrap()
}

fn complaint(pod: &Pod, config: &Value) -> String {
    pod.call(&Bandwidth, Command::Check, "eth0", config).unwrap_err().to_string()
}

#[test]
fn both_directions_get_a_token_bucket() {
    with_pod(|pod| {
        let (pair, prev) = pod.connect("net", "eth0");
        let config = config(&prev);
        let result = add(pod, "eth0", &config);
        let names = ifb_devices();
        assert_eq!(names.len(), 1);
        let detour = names[0].as_str();
        assert_eq!(bucket(&pair.host), Some((1_000_000, 100_000)));
        assert_eq!(bucket(detour), Some((2_000_000, 200_000)));
        assert_eq!(redirect(&pair.host).as_deref(), Some(detour));
        let link = &json(&format!("ip -j link show {detour}"))[0];
        assert_eq!(link["ifalias"], format!("net/{}/eth0", pod.container));
        assert_eq!(result["interfaces"][2], json!({"name": detour, "mac": link["address"]}));
        assert_eq!(result["interfaces"][0], prev["interfaces"][0]);

        let mut checked = config.clone();
        checked["prevResult"] = result.clone();
        pod.call(&Bandwidth, Command::Check, "eth0", &checked).unwrap();
        assert_eq!(add(pod, "eth0", &config), result, "once more changes nothing");
        assert_eq!(ifb_devices(), names);

        pod.call(&Bandwidth, Command::Del, "eth0", &checked).unwrap();
        assert!(ifb_devices().is_empty());
        assert_eq!(
            json(&format!("tc -j qdisc show dev {} ingress", pair.host)),
            json!([]),
            "no redirect into nothing"
        );
        pod.call(&Bandwidth, Command::Del, "eth0", &checked).unwrap();
    });
}

#[test]
fn the_kernel_state_equals_gos() {
    with_pod(|pod| {
        let (pair, prev) = pod.connect("net", "eth0");
        let mut config = config(&prev);
        config["cniVersion"] = json!("1.0.0");
        let state = || {
            let names = ifb_devices();
            let of = |device: &str| {
                let mut all = json(&format!("tc -j qdisc show dev {device}"));
                for one in all.as_array_mut().unwrap() {
                    one.as_object_mut().unwrap().remove("refcnt");
                }
                all
            };
            (names.clone(), of(&pair.host), of(&names[0]), redirect(&pair.host))
        };
        let Some(result) = go("bandwidth", "ADD", &pod.source("eth0"), &config) else { return };
        let theirs = state();
        config["prevResult"] = result.clone();
        pod.call(&Bandwidth, Command::Check, "eth0", &config).unwrap();
        // DEL removes what the Go plugin created.
        pod.call(&Bandwidth, Command::Del, "eth0", &config).unwrap();
        assert!(ifb_devices().is_empty());
        config["prevResult"] = prev;
        let ours = add(pod, "eth0", &config);
        assert_eq!(state(), theirs);
        assert_eq!(ours["interfaces"][2]["name"], result["interfaces"][2]["name"]);
        // The Go plugin's DEL removes what this plugin created.
        go("bandwidth", "DEL", &pod.source("eth0"), &config);
        assert!(ifb_devices().is_empty());
    });
}

/// Sends `size` bytes; returns how long that took.
fn transfer(size: usize, from: impl FnOnce() -> TcpStream + Send, listener: TcpListener) -> Duration {
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(move || from().write_all(&vec![7; size]).unwrap());
        let mut received = Vec::new();
        listener.accept().unwrap().0.read_to_end(&mut received).unwrap();
        assert_eq!(received.len(), size);
    });
    start.elapsed()
}

#[test]
fn packets_are_shaped() {
    with_pod(|pod| {
        let (pair, prev) = pod.connect("net", "eth0");
        run(&format!("ip address add 10.1.0.1/24 dev {}", pair.host));
        pod.run("ip address add 10.1.0.5/24 dev eth0");
        let node = podwire_kernel::Netns::current().unwrap();
        let out = || {
            let connect = || pod.within(|| TcpStream::connect("10.1.0.1:7000").unwrap());
            transfer(600_000, connect, TcpListener::bind("10.1.0.1:7000").unwrap())
        };
        let into = || {
            let connect = || node.run(|| TcpStream::connect("10.1.0.5:7000").unwrap()).unwrap();
            transfer(600_000, connect, pod.within(|| TcpListener::bind("10.1.0.5:7000").unwrap()))
        };
        // 600 kB minus the burst of 100 kB at 1 MB/s.
        let slow = Duration::from_millis(400);
        let mut config = config(&prev);
        add(pod, "eth0", &config);
        assert!(into() > slow);
        config["egressRate"] = json!(8 * MBIT);
        config["egressBurst"] = json!(800_000);
        add(pod, "eth0", &config);
        assert!(out() > slow);
        pod.call(&Bandwidth, Command::Del, "eth0", &config).unwrap();
        // On a busy machine one of five is as fast as it can be.
        assert!((0..5).any(|_| out() < slow), "what the pod sends is free again, not swallowed");
    });
}

/// Each class of a device, with its rate and burst. tc prints no JSON of classes.
fn classes(device: &str) -> Vec<String> {
    let text = run(&format!("tc class show dev {device}"));
    let mut classes: Vec<String> = text
        .lines()
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let after = |key: &str| words[words.iter().position(|word| *word == key).unwrap() + 1];
            format!("{} {} {}", words[2], after("rate"), after("burst"))
        })
        .collect();
    classes.sort();
    classes
}

#[test]
fn only_some_destinations_are_shaped() {
    with_pod(|pod| {
        let (pair, prev) = pod.connect("net", "eth0");
        let (host, plain) = (&pair.host, config(&prev));
        for ip in ["10.1.0.1/24", "10.2.0.1/24", "fd01::1/64"] {
            run(&format!("ip address add {ip} dev {host} nodad"));
        }
        for ip in ["10.1.0.5/24", "10.2.0.5/24", "fd01::5/64"] {
            pod.run(&format!("ip address add {ip} dev eth0 nodad"));
        }
        let node = podwire_kernel::Netns::current().unwrap();
        let out = |ip: &str| {
            let at = format!("{ip}:7000");
            let connect = || pod.within(|| TcpStream::connect(&*at).unwrap());
            transfer(600_000, connect, TcpListener::bind(&*at).unwrap())
        };
        let into = |ip: &str| {
            let at = format!("{ip}:7000");
            let connect = || node.run(|| TcpStream::connect(&*at).unwrap()).unwrap();
            transfer(600_000, connect, pod.within(|| TcpListener::bind(&*at).unwrap()))
        };
        // 600 kB minus the burst of 100 kB at 1 MB/s. On a busy machine one of five is as fast as it can be.
        let slow = Duration::from_millis(400);
        let is_fast = |transfer: &dyn Fn() -> Duration| (0..5).any(|_| transfer() < slow);
        for (key, is_shaped) in [("shapedSubnets", true), ("unshapedSubnets", false)] {
            let mut config = plain.clone();
            config["egressRate"] = json!(8 * MBIT);
            config["egressBurst"] = json!(800_000);
            config[key] = json!(["10.1.0.0/24", "fd01::/64"]);
            let result = add(pod, "eth0", &config);
            let ifb = result["interfaces"][2]["name"].as_str().unwrap();
            for device in [host, ifb] {
                assert_eq!(classes(device), ["1:1 800Gbit 0b", "1:30 8Mbit 100000b"], "{key}");
            }
            for (ip, is_in) in [("10.1.0", true), ("10.2.0", false)] {
                let (node_end, pod_end) = (format!("{ip}.1"), format!("{ip}.5"));
                if is_in == is_shaped {
                    assert!(out(&node_end) > slow && into(&pod_end) > slow, "{key} {ip}");
                } else {
                    assert!(is_fast(&|| out(&node_end)) && is_fast(&|| into(&pod_end)), "{key} {ip}");
                }
            }
            if is_shaped {
                assert!(out("[fd01::1]") > slow && into("[fd01::5]") > slow);
            } else {
                assert!(is_fast(&|| out("[fd01::1]")) && is_fast(&|| into("[fd01::5]")));
            }
            config["prevResult"] = result.clone();
            pod.call(&Bandwidth, Command::Check, "eth0", &config).unwrap();
            run(&format!("tc filter del dev {host} parent 1: prio 16"));
            run(&format!("tc class change dev {ifb} classid 1:30 htb rate 4mbit burst 100000"));
            let text = complaint(pod, &config);
            for part in [
                format!("{host}: subnets are [fd01::/64], should be [10.1.0.0/24 fd01::/64]"),
                format!("{ifb}: rate is 500000 bytes a second, should be 1000000"),
            ] {
                assert!(text.contains(&part), "{text}");
            }
            config["prevResult"] = prev.clone();
            add(pod, "eth0", &config);
            config["prevResult"] = result;
            pod.call(&Bandwidth, Command::Check, "eth0", &config).unwrap();
            let mut without = config.clone();
            without[key] = json!([]);
            assert!(complaint(pod, &without).contains(&format!("{host} has no token bucket")));
            pod.call(&Bandwidth, Command::Del, "eth0", &config).unwrap();
            run(&format!("tc qdisc del dev {host} root"));
        }
    });
}

#[test]
fn check_reports_differences() {
    with_pod(|pod| {
        let (pair, prev) = pod.connect("net", "eth0");
        let config = config(&prev);
        let detour = add(pod, "eth0", &config)["interfaces"][2]["name"].as_str().unwrap().to_string();
        let host = &pair.host;
        run(&format!("tc qdisc change dev {host} handle 1: root tbf rate 4mbit burst 100000 limit 125000"));
        assert!(complaint(pod, &config)
            .contains(&format!("{host}: rate is 500000 bytes a second, should be 1000000")));
        run(&format!("tc qdisc del dev {host} root"));
        run(&format!("ip link set {detour} down"));
        run(&format!(
            "tc qdisc change dev {detour} handle 1: root tbf rate 16mbit burst 150000 limit 250000"
        ));
        run(&format!("tc filter del dev {host} ingress"));
        let text = complaint(pod, &config);
        for part in [
            format!("{host} has no token bucket"),
            format!("{detour}: burst is 150000 bytes, should be 200000"),
            format!("{detour} is down"),
            format!("is not redirected to {detour}"),
        ] {
            assert!(text.contains(&part), "{text}");
        }
        run(&format!("ip link del {detour}"));
        assert!(complaint(pod, &config).contains(&format!("the device {detour} is missing")));
    });
}

#[test]
fn the_burst_that_containerd_sends_is_accepted_and_compared() {
    with_pod(|pod| {
        let (pair, prev) = pod.connect("net", "eth0");
        let limits = json!({"IngressRate": MBIT, "IngressBurst": u32::MAX, "EgressRate": 80_000 * MBIT, "EgressBurst": u32::MAX});
        let config = json!({
            "cniVersion": "1.0.0", "name": "net", "prevResult": prev, "runtimeConfig": {"bandwidth": limits},
        });
        add(pod, "eth0", &config);
        assert_eq!(bucket(&pair.host).unwrap().0, MBIT / 8);
        assert_eq!(bucket(&ifb_devices()[0]).unwrap().0, 10_000 * MBIT);
        pod.call(&Bandwidth, Command::Check, "eth0", &config).unwrap();
    });
}

#[test]
fn del_succeeds_without_the_namespace_and_the_result() {
    with_pod(|pod| {
        let (_, prev) = pod.connect("net", "eth0");
        let mut config = config(&prev);
        add(pod, "eth0", &config);
        pod.vanish();
        config.as_object_mut().unwrap().remove("prevResult");
        pod.call(&Bandwidth, Command::Del, "eth0", &config).unwrap();
        assert!(ifb_devices().is_empty());
        let nowhere = Source { netns: String::new(), ..pod.source("eth0") };
        call(&Bandwidth, Command::Del, &nowhere, &config).unwrap();
    });
}

#[test]
fn two_interfaces_of_a_container_have_separate_devices() {
    with_pod(|pod| {
        let configs: Vec<Value> =
            ["eth0", "eth1"].iter().map(|name| config(&pod.connect("net", name).1)).collect();
        let first = add(pod, "eth0", &configs[0])["interfaces"][2]["name"].clone();
        let second = add(pod, "eth1", &configs[1])["interfaces"][2]["name"].clone();
        assert_ne!(first, second);
        assert_eq!(add(pod, "eth1", &configs[1])["interfaces"][2]["name"], second);
        pod.call(&Bandwidth, Command::Check, "eth1", &configs[1]).unwrap();
        pod.call(&Bandwidth, Command::Del, "eth1", &configs[1]).unwrap();
        assert_eq!(ifb_devices(), [first.as_str().unwrap()]);
        pod.call(&Bandwidth, Command::Check, "eth0", &configs[0]).unwrap();
        pod.call(&Bandwidth, Command::Del, "eth0", &configs[0]).unwrap();
        assert!(ifb_devices().is_empty());
    });
}

#[test]
fn gc_removes_stale_devices_only() {
    with_pod(|pod| {
        let net = pod.own_network();
        let (_, prev) = pod.connect(&net, "eth0");
        let mut config = config(&prev);
        config["name"] = json!(net);
        add(pod, "eth0", &config);
        let kept = ifb_devices();
        for (name, alias) in [
            ("bwpstale", format!("{net}/gone/eth0")),
            ("bwpother", "net2/gone/eth0".into()),
            ("bwpgo", String::new()),
            ("mine", format!("{net}/gone/eth0")),
        ] {
            run(&format!("ip link add {name} type ifb"));
            if !alias.is_empty() {
                run(&format!("ip link set {name} alias {alias}"));
            }
        }
        let mut gc = json!({"cniVersion": "1.1.0", "name": net});
        let no_container = Source::default();
        let error = call(&Bandwidth, Command::Gc, &no_container, &gc).unwrap_err().to_string();
        assert!(error.contains("valid-attachments is missing"), "{error}");
        gc["cni.dev/valid-attachments"] = json!([{"containerID": pod.container, "ifname": "eth0"}]);
        call(&Bandwidth, Command::Gc, &no_container, &gc).unwrap();
        let left = ifb_devices();
        assert!(
            !left.contains(&"bwpstale".to_string()) && left.len() == 4 && left.contains(&kept[0]),
            "{left:?}"
        );
        gc["cni.dev/valid-attachments"] = json!([]);
        collect_until(&Bandwidth, &gc, || ifb_devices().len() == 3);
    });
}

#[test]
fn without_limits_nothing_changes() {
    with_pod(|pod| {
        let (pair, prev) = pod.connect("net", "eth0");
        let config = json!({"cniVersion": "1.0.0", "name": "net", "prevResult": prev});
        let result = add(pod, "eth0", &config);
        assert_eq!(result["interfaces"], prev["interfaces"]);
        assert_eq!(bucket(&pair.host), None);
        pod.call(&Bandwidth, Command::Check, "eth0", &config).unwrap();
        let unchained = json!({"cniVersion": "1.0.0", "name": "net"});
        let error = pod.call(&Bandwidth, Command::Add, "eth0", &unchained).unwrap_err().to_string();
        assert!(error.starts_with("must be called as chained plugin"), "{error}");
    });
}

#[test]
fn only_a_veth_pair_can_be_limited() {
    with_pod(|pod| {
        pod.run("ip link add br0 type bridge");
        let config = config(&json!({"cniVersion": "1.0.0"}));
        let error = pod.call(&Bandwidth, Command::Add, "br0", &config).unwrap_err().to_string();
        assert!(error.starts_with("no veth peer of container interface found in host ns"), "{error}");
        // Both ends are in the pod: the peer's index is not one of the node.
        pod.run("ip link add eth0 type veth peer name eth1");
        assert!(pod.call(&Bandwidth, Command::Add, "eth0", &config).is_err());
        assert!(ifb_devices().is_empty());
    });
}

#[test]
fn a_failed_add_leaves_nothing() {
    with_pod(|pod| {
        let (pair, prev) = pod.connect("net", "eth0");
        // Another program filters with a qdisc that excludes the one for the redirect.
        run(&format!("tc qdisc add dev {} clsact", pair.host));
        run(&format!("tc filter add dev {} ingress protocol ip u32 match u32 0 0 flowid :1", pair.host));
        let error = pod.call(&Bandwidth, Command::Add, "eth0", &config(&prev)).unwrap_err().to_string();
        assert!(error.starts_with("redirect what the pod sends from veth"), "{error}");
        assert!(ifb_devices().is_empty());
        assert_eq!(bucket(&pair.host), None);
    });
}

#[test]
fn a_killed_add_is_completed_or_cleaned_up() {
    with_pod(|pod| {
        let (pair, prev) = pod.connect("net", "eth0");
        let config = config(&prev);
        let detour = add(pod, "eth0", &config)["interfaces"][2]["name"].as_str().unwrap().to_string();
        pod.call(&Bandwidth, Command::Del, "eth0", &config).unwrap();
        let unrecorded = json!({"cniVersion": "1.0.0", "name": "net"});
        // Killed before it set the alias of the device.
        run(&format!("ip link add {detour} type ifb"));
        pod.call(&Bandwidth, Command::Del, "eth0", &unrecorded).unwrap();
        assert!(ifb_devices().is_empty());
        // Killed after it redirected to a device that was deleted since.
        run(&format!("ip link add {detour} type ifb"));
        run(&format!("ip link set {detour} up alias net/{}/eth0", pod.container));
        run(&format!("tc qdisc add dev {} ingress", pair.host));
        run("ip link add bwpold type ifb");
        let host = &pair.host;
        run(&format!("tc filter add dev {host} parent ffff: protocol all u32 match u32 0 0 action mirred egress redirect dev bwpold"));
        run("ip link del bwpold");
        add(pod, "eth0", &config);
        pod.call(&Bandwidth, Command::Check, "eth0", &config).unwrap();
        assert_eq!(redirect(host).as_deref(), Some(detour.as_str()));
        pod.call(&Bandwidth, Command::Del, "eth0", &unrecorded).unwrap();
        assert!(ifb_devices().is_empty() && redirect(host).is_none());
    });
}
