//! host-local's additional keys on a node where the Go plugin serves the same pool: it ignores them without errors.

use std::collections::BTreeSet;

use podwire_tests::{ours, Chain, Invocation, Node, Output, Pod, GO};
use serde_json::{json, Value};

fn pool() -> Value {
    json!({"type": "host-local", "cooldown": "1h", "sticky": true, "ranges": [
        [{"subnet": "10.1.0.0/24", "exclude": ["10.1.0.2-10.1.0.9"], "reserve": ["10.1.0.50"]}],
        [{"subnet": "fd00:1::/64"}]]})
}

fn call(node: &Node, path: &str, verb: &str, (pod, container): (&str, &str)) -> Output {
    let config = json!({"cniVersion": "1.0.0", "name": "pods", "type": "host-local", "ipam": pool()});
    let no_pod = Pod { name: container.into(), netns: "/run/netns/none".into() };
    let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={pod}");
    Invocation::new(node, path, verb, &no_pod, &config).env("CNI_ARGS", &args).run()
}

fn given(output: &Output) -> Vec<String> {
    let result = output.result();
    result["ips"].as_array().unwrap().iter().map(|ip| ip["address"].as_str().unwrap().to_owned()).collect()
}

fn files(node: &Node) -> BTreeSet<String> {
    node.sh("ls /var/lib/cni/networks/pods").lines().map(String::from).collect()
}

#[test]
fn a_pod_gets_its_address_again_in_a_pool_shared_with_go() {
    let node = Node::new();
    let first = given(&call(&node, &ours(), "ADD", ("web-0", "a")));
    assert_eq!(first, ["10.1.0.10/24", "fd00:1::2/64"]);
    // Go's plugin allocates the next address, checks and releases it. It ignores Podwire's files in the directory.
    let other = given(&call(&node, GO, "ADD", ("other", "b")));
    assert_eq!(other, ["10.1.0.11/24", "fd00:1::3/64"]);
    assert!(files(&node).contains("podwire.history") && files(&node).contains("podwire.boot"));
    for (path, id) in [(GO, ("web-0", "a")), (&*ours(), ("other", "b")), (GO, ("other", "b"))] {
        call(&node, path, "CHECK", id).result();
    }
    call(&node, GO, "DEL", ("web-0", "a")).result();
    call(&node, &ours(), "DEL", ("other", "b")).result();
    assert_eq!(given(&call(&node, &ours(), "ADD", ("web-0", "a2"))), first);
    // Podwire's plugin does not assign an address again before its cooldown ends.
    assert_eq!(given(&call(&node, &ours(), "ADD", ("new", "c"))), ["10.1.0.12/24", "fd00:1::4/64"]);
    for id in ["a2", "c"] {
        call(&node, GO, "DEL", ("any", id)).result();
    }
    let expected = ["last_reserved_ip.0", "last_reserved_ip.1", "lock", "podwire.boot", "podwire.history"];
    assert_eq!(files(&node), expected.map(String::from).into());
}

#[test]
fn a_reserved_address_is_there_for_who_asks() {
    let node = Node::new();
    let config = json!({"cniVersion": "1.0.0", "name": "pods", "type": "host-local", "ipam": pool()});
    let pod = Pod { name: "vip".into(), netns: "/run/netns/none".into() };
    let add = |ip: &str| {
        Invocation::new(&node, &ours(), "ADD", &pod, &config).env("CNI_ARGS", &format!("IP={ip}")).run()
    };
    let (code, text) = add("10.1.0.5").error();
    assert!(code == 7 && text.ends_with("requested ip 10.1.0.5 is excluded (exclude)"), "{text}");
    assert_eq!(given(&add("10.1.0.50"))[0], "10.1.0.50/24");
}

#[test]
fn a_slash_31_needs_an_explicit_gateway() {
    let node = Node::new();
    let chain = |kind: &str, ipam: Value| {
        Chain::new(&ours(), &format!("net-{kind}"), &[json!({"type": kind, "isGateway": true, "ipam": ipam})])
    };
    let bare = json!({"type": "host-local", "subnet": "10.2.0.4/31"});
    for kind in ["bridge", "ptp"] {
        let (code, text) = chain(kind, bare.clone()).try_add(&node, &node.pod(kind)).unwrap_err().error();
        assert!(code == 7 && text.contains("10.2.0.4/31 has no gateway"), "{kind}: {text}");
    }
    let both = json!({"type": "host-local", "ranges": [
        [{"subnet": "10.2.0.4/31", "gateway": "10.2.0.4"}], [{"subnet": "fd00:2::4/127", "gateway": "fd00:2::4"}]]});
    for kind in ["bridge", "ptp"] {
        let pod = node.pod(&format!("{kind}-routed"));
        let chain = chain(kind, both.clone());
        let result = chain.add(&node, &pod);
        for address in ["10.2.0.5", "fd00:2::5"] {
            assert!(node.pings(None, address), "{kind}: {address}");
        }
        chain.check(&node, &pod, &result).unwrap();
        chain.del(&node, &pod, Some(&result));
        node.sh("ip link delete cni0 2>/dev/null || true");
    }
}
