//! Invalid policies: what is enforced, and which warning the user gets.

use podwire_policy::{compile, oracle, Compiler, Packet, Protocol, Snapshot, Verdict, WarningKind};
use serde_json::{json, Value};

/// Two pods, `x/a` (10.0.0.1) and `x/b` (10.0.0.2), and a policy.
fn cluster_with(policy: Value) -> Snapshot {
    let mut snapshot = Snapshot::new();
    for (name, ip) in [("a", "10.0.0.1"), ("b", "10.0.0.2")] {
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "status": { "podIP": ip },
            "metadata": { "name": name, "namespace": "x", "labels": { "app": name } } });
        snapshot.add(pod).unwrap();
    }
    snapshot.add(policy).unwrap();
    snapshot
}

/// A NetworkPolicy for `a` with one rule for ingress.
fn rule(rule: Value) -> Snapshot {
    spec(json!({ "podSelector": { "matchLabels": { "app": "a" } }, "ingress": [rule] }))
}

fn spec(spec: Value) -> Snapshot {
    cluster_with(json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": "p", "namespace": "x" }, "spec": spec }))
}

/// A ClusterNetworkPolicy for all pods.
fn cluster_policy(spec: Value) -> Snapshot {
    let mut whole = json!({ "tier": "Admin", "priority": 1, "subject": { "namespaces": {} } });
    for (key, value) in spec.as_object().unwrap() {
        whole[key] = value.clone();
    }
    cluster_with(json!({ "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": { "name": "p" }, "spec": whole }))
}

/// Whether `b` reaches TCP port 80 of `a`; oracle and program agree about it.
fn reaches(snapshot: &Snapshot) -> bool {
    let ip = |text: &str| text.parse().unwrap();
    let packet =
        Packet { source: ip("10.0.0.2"), destination: ip("10.0.0.1"), service: Some((Protocol::Tcp, 80)) };
    let evaluation = oracle::evaluate(snapshot, &packet);
    assert_eq!(compile(snapshot, None).program.evaluate(&packet), evaluation.verdict);
    evaluation.verdict == Verdict::Allow
}

/// Kind, field and text of the first warning.
fn first_warning(snapshot: &Snapshot) -> (WarningKind, String, String) {
    let warnings = compile(snapshot, None).warnings;
    let first = warnings.first().unwrap_or_else(|| panic!("no warning")).clone();
    (first.kind, first.field, first.text)
}

#[track_caller]
fn expect(snapshot: &Snapshot, allowed: bool, kind: WarningKind, field: &str, text: &str) {
    assert_eq!(reaches(snapshot), allowed);
    let warning = first_warning(snapshot);
    assert_eq!((warning.0, warning.1.as_str()), (kind, field), "{}", warning.2);
    assert!(warning.2.contains(text), "{:?} does not contain {text:?}", warning.2);
}

#[test]
fn a_valid_policy_has_no_warnings() {
    let good = rule(
        json!({ "from": [{ "podSelector": { "matchLabels": { "app": "b" } } }], "ports": [{ "port": 80 }] }),
    );
    assert!(reaches(&good));
    assert_eq!(compile(&good, None).warnings, []);
}

#[test]
fn unknown_fields_have_no_effect_and_cause_warnings() {
    let typo = rule(json!({ "form": [{ "podSelector": {} }] }));
    expect(&typo, true, WarningKind::UnknownField, "spec.ingress[0].form", "no such field");
    let in_selector = rule(json!({ "from": [{ "podSelector": { "matchlabels": { "app": "c" } } }] }));
    expect(
        &in_selector,
        true,
        WarningKind::UnknownField,
        "spec.ingress[0].from[0].podSelector.matchlabels",
        "no such field",
    );
    let in_spec = spec(json!({ "podSelector": {}, "ingres": [] }));
    expect(&in_spec, false, WarningKind::UnknownField, "spec.ingres", "no such field");
    let in_cluster_policy =
        cluster_policy(json!({ "ingres": [{ "action": "Deny", "from": [{ "namespaces": {} }] }] }));
    expect(&in_cluster_policy, true, WarningKind::UnknownField, "spec.ingres", "no such field");
}

#[test]
fn a_peer_without_known_fields_selects_nothing() {
    for peer in [json!({}), json!({ "serviceSelector": {} })] {
        assert!(!reaches(&rule(json!({ "from": [peer] }))));
    }
    expect(
        &rule(json!({ "from": [{}] })),
        false,
        WarningKind::Invalid,
        "spec.ingress[0].from[0]",
        "selects nothing",
    );
    let both = json!({ "from": [{ "ipBlock": { "cidr": "10.0.0.0/8" }, "podSelector": {} }] });
    expect(&rule(both), false, WarningKind::Invalid, "spec.ingress[0].from[0]", "exclude each other");
    // As in Go, a null entry is an object without fields: a rule that allows everything.
    assert!(reaches(&spec(json!({ "podSelector": {}, "ingress": [null] }))));
}

#[test]
fn invalid_and_unmatched_selectors_cause_warnings() {
    let wrong =
        json!({ "from": [{ "podSelector": { "matchExpressions": [{ "key": "app", "operator": "Is" }] } }] });
    expect(
        &rule(wrong),
        false,
        WarningKind::Invalid,
        "spec.ingress[0].from[0].podSelector",
        "no such operator",
    );
    let unmatched = json!({ "from": [{ "podSelector": { "matchLabels": { "app": "c" } } }] });
    expect(&rule(unmatched), false, WarningKind::Unmatched, "spec.ingress[0]", "there are none now");
    let unmatched = spec(json!({ "podSelector": { "matchLabels": { "app": "c" } } }));
    expect(&unmatched, true, WarningKind::Unmatched, "spec", "selects no pod");
    let nowhere = json!({ "from": [{ "namespaceSelector": { "matchLabels": { "team": "c" } } }] });
    expect(&rule(nowhere), false, WarningKind::Unmatched, "spec.ingress[0]", "there are none now");
    let subject = json!({ "namespaces": { "matchLabels": { "team": "c" } } });
    let deny = json!([{ "action": "Deny", "from": [{ "namespaces": {} }] }]);
    let unmatched = cluster_policy(json!({ "subject": subject, "ingress": deny }));
    expect(&unmatched, true, WarningKind::Unmatched, "spec", "selects no pod");
}

#[test]
fn a_compiler_keeps_track_of_unmatched_selectors() {
    let from = json!({ "from": [{ "podSelector": { "matchLabels": { "app": "c" } } }], "ports": [{ "port": "web" }] });
    let snapshot = rule(from);
    let mut compiler = Compiler::new(&snapshot, None);
    let unmatched = |compiler: &mut Compiler| {
        compiler.unmatched().into_iter().map(|one| (one.kind, one.field, one.text)).collect::<Vec<_>>()
    };
    let warnings = unmatched(&mut compiler);
    assert!(warnings
        .iter()
        .all(|(kind, field, _)| (*kind, field.as_str()) == (WarningKind::Unmatched, "spec.ingress[0]")));
    assert!(warnings.iter().any(|(_, _, text)| text.contains("app=c")), "{warnings:?}");
    assert!(warnings.iter().any(|(_, _, text)| text.contains("port \"web\"")), "{warnings:?}");
    // The selected pod is deleted, and added again with what was missing.
    compiler.set_pod("x/a", None);
    let warnings = unmatched(&mut compiler);
    assert_eq!(
        (warnings.len(), warnings[0].1.as_str()),
        (1, "spec"),
        "the rules of a policy without pods need no peers: {warnings:?}"
    );
    let ports = json!([{ "name": "web", "containerPort": 80 }]);
    let mut more = Snapshot::new();
    for (name, ip) in [("a", "10.0.0.1"), ("c", "10.0.0.3")] {
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "status": { "podIP": ip },
            "metadata": { "name": name, "namespace": "x", "labels": { "app": name } },
            "spec": { "containers": [{ "ports": ports }] } });
        more.add(pod).unwrap();
    }
    for pod in more.pods {
        compiler.set_pod(&pod.full_name(), Some(pod));
    }
    assert_eq!(unmatched(&mut compiler), []);
}

#[test]
fn ports_without_a_protocol_are_tcp() {
    assert!(reaches(&rule(json!({ "ports": [{ "port": 80 }] }))));
    assert!(reaches(&rule(json!({ "ports": [{}] }))));
    assert!(reaches(&rule(json!({ "ports": [{ "port": 79, "endPort": 81 }] }))));
    assert!(!reaches(&rule(json!({ "ports": [{ "port": 80, "protocol": "UDP" }] }))));
    // That is no reason for a warning.
    assert_eq!(compile(&rule(json!({ "ports": [{ "port": 80 }] })), None).warnings, []);
    // The same UDP port is not allowed.
    let ip = |text: &str| text.parse().unwrap();
    let datagram = Some((Protocol::Udp, 80));
    let packet = Packet { source: ip("10.0.0.2"), destination: ip("10.0.0.1"), service: datagram };
    for ports in [json!([{ "port": 80 }]), json!([{}])] {
        assert_eq!(
            oracle::evaluate(&rule(json!({ "ports": ports })), &packet).verdict,
            Verdict::Deny,
            "{ports}"
        );
    }
}

#[test]
fn invalid_ports_allow_nothing() {
    for (port, text) in [
        (json!({ "port": 0 }), "0 is not a port"),
        (json!({ "port": 70000 }), "70000 is not a port"),
        (json!({ "endPort": 90 }), "endPort without port"),
        (json!({ "port": "web", "endPort": 90 }), "endPort with a port name"),
        (json!({ "port": 90, "endPort": 70 }), "endPort 70 is below port 90"),
        (json!({ "port": 80, "protocol": "tcp" }), "none of TCP, UDP, SCTP"),
    ] {
        expect(
            &rule(json!({ "ports": [port] })),
            false,
            WarningKind::Invalid,
            "spec.ingress[0].ports[0]",
            text,
        );
    }
    let unnamed = json!({ "ports": [{ "port": "web" }] });
    expect(
        &rule(unnamed),
        false,
        WarningKind::Unmatched,
        "spec.ingress[0]",
        "no container has a port named \"web\"",
    );
}

#[test]
fn host_bits_of_networks_are_ignored_with_a_warning() {
    let block = |cidr: &str, except: &[&str]| {
        rule(json!({ "from": [{ "ipBlock": { "cidr": cidr, "except": except } }] }))
    };
    let field = "spec.ingress[0].from[0].ipBlock";
    expect(
        &block("10.0.0.77/24", &[]),
        true,
        WarningKind::Suspicious,
        &format!("{field}.cidr"),
        "read as 10.0.0.0/24",
    );
    expect(
        &block("10.0.0.0/33", &[]),
        false,
        WarningKind::Invalid,
        &format!("{field}.cidr"),
        "is not a network",
    );
    expect(
        &block("10.0.0.0", &[]),
        false,
        WarningKind::Invalid,
        &format!("{field}.cidr"),
        "is not a network",
    );
    let except = format!("{field}.except[0]");
    expect(&block("10.0.0.0/24", &["10.1.0.0/24"]), true, WarningKind::Invalid, &except, "not inside");
    expect(&block("10.0.0.0/24", &["10.0.0.0/8"]), false, WarningKind::Invalid, &except, "leaves nothing");
    // It could mean any network.
    expect(&block("10.0.0.0/24", &["nonsense"]), false, WarningKind::Invalid, &except, "is not a network");
    assert!(!reaches(&block("10.0.0.0/24", &["10.0.0.2/32"])));
    // The same for `except`, IPv6 and a ClusterNetworkPolicy.
    expect(
        &block("10.0.0.0/8", &["10.0.0.77/24"]),
        false,
        WarningKind::Suspicious,
        &except,
        "read as 10.0.0.0/24",
    );
    let six = format!("{field}.cidr");
    expect(&block("fd00:1::7/64", &[]), false, WarningKind::Suspicious, &six, "read as fd00:1::/64");
    let deny =
        cluster_policy(json!({ "egress": [{ "action": "Deny", "to": [{ "networks": ["10.0.0.77/24"] }] }] }));
    let field = "spec.egress[0].to[0].networks[0]";
    expect(&deny, false, WarningKind::Suspicious, field, "read as 10.0.0.0/24");
}

#[test]
fn rules_for_a_direction_not_in_policy_types_have_no_effect() {
    let egress_only = spec(
        json!({ "podSelector": {}, "policyTypes": ["Egress"], "ingress": [{ "ports": [{ "port": 81 }] }],
        "egress": [{}] }),
    );
    expect(&egress_only, true, WarningKind::Suspicious, "spec.ingress", "have no effect");
    let unknown = spec(json!({ "podSelector": {}, "policyTypes": ["ingress"] }));
    expect(&unknown, true, WarningKind::Invalid, "spec.policyTypes", "neither Ingress nor Egress");
}

#[test]
fn thousands_of_peers_are_enforced_with_a_warning() {
    let selectors: Vec<Value> =
        (0..2000).map(|n| json!({ "podSelector": { "matchLabels": { "app": format!("b{n}") } } })).collect();
    let snapshot = rule(json!({ "from": selectors }));
    assert!(!reaches(&snapshot));
    let warnings = compile(&snapshot, None).warnings;
    assert!(warnings.iter().any(|warning| warning.text.starts_with("2000 selectors in one rule")));
    // Any number of networks is one set: no warning.
    let blocks: Vec<Value> = (0..2000)
        .map(|n| json!({ "ipBlock": { "cidr": format!("10.{}.{}.0/24", n / 250, n % 250) } }))
        .collect();
    let snapshot = rule(json!({ "from": blocks }));
    let compiled = compile(&snapshot, None);
    assert!(reaches(&snapshot));
    assert_eq!(compiled.warnings, []);
    assert_eq!(compiled.program.stages.values().map(|stage| stage.rules.len()).sum::<usize>(), 1);
}

#[test]
fn invalid_rules_of_cluster_policies_fail_closed() {
    let with = |action: &str, from: Value| {
        cluster_policy(json!({ "ingress": [{ "action": action, "from": from }] }))
    };
    for broken in [
        json!([{}]),
        json!([{ "services": {} }]),
        json!([]),
        json!([{ "namespaces": {}, "pods": {} }]),
        json!([{ "namespaces": { "matchExpressions": [{ "key": "a", "operator": "In" }] } }]),
        json!([{ "networks": ["0.0.0.0/0"] }]),
        json!([{ "domainNames": ["example.org"] }]),
    ] {
        assert!(!reaches(&with("Deny", broken.clone())), "{broken}");
        assert!(!reaches(&with("Pass", broken.clone())), "{broken}");
        let accept = cluster_policy(
            json!({ "ingress": [{ "action": "Accept", "from": broken }, { "action": "Deny", "from": [{ "namespaces": {} }] }] }),
        );
        assert!(!reaches(&accept));
    }
    let deny = with("Deny", json!([{ "services": {} }]));
    expect(&deny, false, WarningKind::Invalid, "spec.ingress[0]", "denies everything");
}

#[test]
fn invalid_protocols_of_cluster_policies_fail_closed() {
    for broken in [
        json!([]),
        json!([{}]),
        json!([{ "tcp": {} }]),
        json!([{ "icmp": {} }]),
        json!([{ "destinationNamedPort": "" }]),
        json!([{ "tcp": { "destinationPort": { "number": 0 } } }]),
        json!([{ "tcp": { "destinationPort": { "range": { "start": 90, "end": 90 } } } }]),
        json!([{ "tcp": { "destinationPort": { "number": 80, "range": { "start": 1, "end": 2 } } } }]),
    ] {
        let rule = |action: &str| json!({ "ingress": [{ "action": action, "from": [{ "namespaces": {} }], "protocols": broken }] });
        assert!(!reaches(&cluster_policy(rule("Deny"))), "{broken}");
        assert!(!reaches(&cluster_policy(rule("Pass"))), "{broken}");
        assert!(
            reaches(&cluster_policy(rule("Accept"))),
            "{broken}: an Accept that matches nothing denies nothing either"
        );
    }
}

#[test]
fn fields_that_the_api_refuses_cause_warnings() {
    let priority = cluster_policy(
        json!({ "priority": 2000, "ingress": [{ "action": "Deny", "from": [{ "namespaces": {} }] }] }),
    );
    expect(&priority, false, WarningKind::Invalid, "spec.priority", "not from 0 to 1000");
    let unmatched = cluster_policy(
        json!({ "subject": {}, "ingress": [{ "action": "Deny", "from": [{ "namespaces": {} }] }] }),
    );
    expect(&unmatched, true, WarningKind::Invalid, "spec.subject", "selects no pod");
    let many: Vec<Value> = (0..26).map(|_| json!({ "namespaces": {} })).collect();
    let many = cluster_policy(json!({ "ingress": [{ "action": "Deny", "from": many }] }));
    expect(&many, false, WarningKind::Invalid, "spec.ingress[0].from", "26 entries");
}

#[test]
fn domain_names_accept_nothing_and_other_peers_still_match() {
    let egress = cluster_policy(json!({ "egress": [
        { "action": "Accept", "to": [{ "domainNames": ["example.org"] }, { "networks": ["10.0.0.1/32"] }] },
        { "action": "Deny", "to": [{ "networks": ["0.0.0.0/0"] }] }] }));
    expect(&egress, true, WarningKind::Unsupported, "spec.egress[0].to[0].domainNames", "not supported");
}
