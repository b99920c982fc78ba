//! Configs that were changed or damaged between ADD and DEL.

use podwire_tests::{assert_same, can_serve, ours, Chain, Node};
use serde_json::{json, Value};

use crate::{good, is_chained, SUBNET};

/// A config may be changed or damaged while its pods are running: DEL must still work.
#[test]
fn a_changed_or_invalid_config_does_not_prevent_del() {
    type Spoil = fn(Value) -> Value;
    let spoilt: &[(&str, Spoil)] = &[
        ("bridge", |c| with(c, "vlan", json!(4095))),
        ("bridge", |c| with(c, "mtu", json!("large"))),
        ("bridge", |c| with(c, "bridge", json!(5))),
        ("bridge", |c| with(c, "ipMasqBackend", json!("ebtables"))),
        ("flannel", |c| with(c, "delegate", json!("bridge"))),
        ("flannel", |c| with(c, "delegate", json!({"type": "bridge", "name": "x"}))),
        ("flannel", |c| with(c, "subnetFile", json!(5))),
        ("flannel", |c| with(c, "subnetFile", json!("/nowhere"))),
        ("flannel", |c| with(c, "ipam", json!("none"))),
        ("debug", |c| with(c, "delHooks", json!(5))),
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
        ("macvlan", |c| with(c, "mode", json!(5))),
        ("macvlan", |c| with(c, "master", json!("nowhere"))),
        ("macvlan", |c| with(c, "master", Value::Null)),
        ("ipvlan", |c| with(c, "master", Value::Null)),
        ("ipvlan", |c| with(c, "flag", json!("none"))),
        ("vlan", |c| with(c, "master", Value::Null)),
        ("vlan", |c| with(c, "vlanId", json!(5000))),
        ("dummy", |c| with(c, "mtu", json!("large"))),
        ("static", |c| with(c, "ipam", json!({"type": "static", "addresses": 5}))),
    ];
    for (kind, spoil) in spoilt.iter().filter(|(kind, _)| can_serve(kind)) {
        let node = Node::new();
        node.create_uplink();
        node.write("/run/flannel/subnet.env", SUBNET);
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
