//! Policies with mistakes in them: what is enforced all the same, and what the user hears.

use podwire_policy::{compile, oracle, Compiler, Kind, Packet, Protocol, Snapshot, Verdict};
use serde_json::{json, Value};

/// Two pods, `x/a` (10.0.0.1) and `x/b` (10.0.0.2), and a policy.
fn world(policy: Value) -> Snapshot {
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
    world(json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": "p", "namespace": "x" }, "spec": spec }))
}

/// A ClusterNetworkPolicy for all pods.
fn cluster(spec: Value) -> Snapshot {
    let mut whole = json!({ "tier": "Admin", "priority": 1, "subject": { "namespaces": {} } });
    for (key, value) in spec.as_object().unwrap() {
        whole[key] = value.clone();
    }
    world(json!({ "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": { "name": "p" }, "spec": whole }))
}

/// Whether `b` reaches TCP port 80 of `a`; oracle and program agree about it.
fn reaches(snapshot: &Snapshot) -> bool {
    let ip = |text: &str| text.parse().unwrap();
    let packet =
        Packet { source: ip("10.0.0.2"), destination: ip("10.0.0.1"), service: Some((Protocol::Tcp, 80)) };
    let judgement = oracle::judge(snapshot, &packet);
    assert_eq!(compile(snapshot, None).program.judge(&packet), judgement.verdict);
    judgement.verdict == Verdict::Allow
}

/// What the user hears: kind, place and text of the first warning.
fn told(snapshot: &Snapshot) -> (Kind, String, String) {
    let warnings = compile(snapshot, None).warnings;
    let first = warnings.first().unwrap_or_else(|| panic!("no warning")).clone();
    (first.kind, first.place, first.text)
}

#[track_caller]
fn expect(snapshot: &Snapshot, allowed: bool, kind: Kind, place: &str, text: &str) {
    assert_eq!(reaches(snapshot), allowed);
    let heard = told(snapshot);
    assert_eq!((heard.0, heard.1.as_str()), (kind, place), "{}", heard.2);
    assert!(heard.2.contains(text), "{:?} does not say {text:?}", heard.2);
}

#[test]
fn a_good_policy_is_silent() {
    let good = rule(
        json!({ "from": [{ "podSelector": { "matchLabels": { "app": "b" } } }], "ports": [{ "port": 80 }] }),
    );
    assert!(reaches(&good));
    assert_eq!(compile(&good, None).warnings, []);
}

#[test]
fn unknown_fields_have_no_effect_and_are_told() {
    let typo = rule(json!({ "form": [{ "podSelector": {} }] }));
    expect(&typo, true, Kind::Unknown, "spec.ingress[0].form", "no such field");
    let in_selector = rule(json!({ "from": [{ "podSelector": { "matchlabels": { "app": "c" } } }] }));
    expect(
        &in_selector,
        true,
        Kind::Unknown,
        "spec.ingress[0].from[0].podSelector.matchlabels",
        "no such field",
    );
    let in_spec = spec(json!({ "podSelector": {}, "ingres": [] }));
    expect(&in_spec, false, Kind::Unknown, "spec.ingres", "no such field");
    let in_cluster_policy =
        cluster(json!({ "ingres": [{ "action": "Deny", "from": [{ "namespaces": {} }] }] }));
    expect(&in_cluster_policy, true, Kind::Unknown, "spec.ingres", "no such field");
}

#[test]
fn a_peer_that_says_nothing_known_selects_nobody() {
    for peer in [json!({}), json!({ "serviceSelector": {} })] {
        assert!(!reaches(&rule(json!({ "from": [peer] }))));
    }
    expect(
        &rule(json!({ "from": [{}] })),
        false,
        Kind::Refused,
        "spec.ingress[0].from[0]",
        "selects nothing",
    );
    let both = json!({ "from": [{ "ipBlock": { "cidr": "10.0.0.0/8" }, "podSelector": {} }] });
    expect(&rule(both), false, Kind::Refused, "spec.ingress[0].from[0]", "exclude each other");
    // As in Go, an entry that is null is one without fields: a rule that allows all.
    assert!(reaches(&spec(json!({ "podSelector": {}, "ingress": [null] }))));
}

#[test]
fn selectors_that_make_no_sense_or_select_nobody_are_told() {
    let wrong =
        json!({ "from": [{ "podSelector": { "matchExpressions": [{ "key": "app", "operator": "Is" }] } }] });
    expect(&rule(wrong), false, Kind::Refused, "spec.ingress[0].from[0].podSelector", "no such operator");
    let nobody = json!({ "from": [{ "podSelector": { "matchLabels": { "app": "c" } } }] });
    expect(&rule(nobody), false, Kind::Nothing, "spec.ingress[0]", "there are none at this moment");
    let nobody = spec(json!({ "podSelector": { "matchLabels": { "app": "c" } } }));
    expect(&nobody, true, Kind::Nothing, "spec", "about no pod");
    let nowhere = json!({ "from": [{ "namespaceSelector": { "matchLabels": { "team": "c" } } }] });
    expect(&rule(nowhere), false, Kind::Nothing, "spec.ingress[0]", "there are none at this moment");
    let subject = json!({ "namespaces": { "matchLabels": { "team": "c" } } });
    let deny = json!([{ "action": "Deny", "from": [{ "namespaces": {} }] }]);
    let nobody = cluster(json!({ "subject": subject, "ingress": deny }));
    expect(&nobody, true, Kind::Nothing, "spec", "about no pod");
}

#[test]
fn a_compiler_knows_at_any_time_which_selectors_nobody_fits_to() {
    let from = json!({ "from": [{ "podSelector": { "matchLabels": { "app": "c" } } }], "ports": [{ "port": "web" }] });
    let snapshot = rule(from);
    let mut compiler = Compiler::of(&snapshot, None);
    let told = |compiler: &mut Compiler| {
        compiler.unmatched().into_iter().map(|one| (one.kind, one.place, one.text)).collect::<Vec<_>>()
    };
    let heard = told(&mut compiler);
    assert!(heard
        .iter()
        .all(|(kind, place, _)| (*kind, place.as_str()) == (Kind::Nothing, "spec.ingress[0]")));
    assert!(heard.iter().any(|(_, _, text)| text.contains("app=c")), "{heard:?}");
    assert!(heard.iter().any(|(_, _, text)| text.contains("port \"web\"")), "{heard:?}");
    // The pod that the policy is about goes, and comes back with what was missing.
    compiler.change_pod("x/a", None);
    let heard = told(&mut compiler);
    assert_eq!(
        (heard.len(), heard[0].1.as_str()),
        (1, "spec"),
        "rules about nobody need no peers: {heard:?}"
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
        compiler.change_pod(&pod.full_name(), Some(pod));
    }
    assert_eq!(told(&mut compiler), []);
}

#[test]
fn ports_without_protocol_are_of_tcp() {
    assert!(reaches(&rule(json!({ "ports": [{ "port": 80 }] }))));
    assert!(reaches(&rule(json!({ "ports": [{}] }))));
    assert!(reaches(&rule(json!({ "ports": [{ "port": 79, "endPort": 81 }] }))));
    assert!(!reaches(&rule(json!({ "ports": [{ "port": 80, "protocol": "UDP" }] }))));
    // Nobody needs to hear of it.
    assert_eq!(compile(&rule(json!({ "ports": [{ "port": 80 }] })), None).warnings, []);
    // And of nothing else: the same port of UDP is not meant.
    let ip = |text: &str| text.parse().unwrap();
    let datagram = Some((Protocol::Udp, 80));
    let packet = Packet { source: ip("10.0.0.2"), destination: ip("10.0.0.1"), service: datagram };
    for ports in [json!([{ "port": 80 }]), json!([{}])] {
        assert_eq!(
            oracle::judge(&rule(json!({ "ports": ports })), &packet).verdict,
            Verdict::Deny,
            "{ports}"
        );
    }
}

#[test]
fn ports_that_are_none_allow_nothing() {
    for (port, text) in [
        (json!({ "port": 0 }), "0 is no port"),
        (json!({ "port": 70000 }), "70000 is no port"),
        (json!({ "endPort": 90 }), "endPort without port"),
        (json!({ "port": "web", "endPort": 90 }), "endPort with a port's name"),
        (json!({ "port": 90, "endPort": 70 }), "endPort 70 is below port 90"),
        (json!({ "port": 80, "protocol": "tcp" }), "none of TCP, UDP, SCTP"),
    ] {
        expect(&rule(json!({ "ports": [port] })), false, Kind::Refused, "spec.ingress[0].ports[0]", text);
    }
    let unnamed = json!({ "ports": [{ "port": "web" }] });
    expect(&rule(unnamed), false, Kind::Nothing, "spec.ingress[0]", "no container has a port named \"web\"");
}

#[test]
fn networks_are_read_without_the_bits_behind_the_prefix() {
    let block = |cidr: &str, except: &[&str]| {
        rule(json!({ "from": [{ "ipBlock": { "cidr": cidr, "except": except } }] }))
    };
    let place = "spec.ingress[0].from[0].ipBlock";
    expect(
        &block("10.0.0.77/24", &[]),
        true,
        Kind::Suspicious,
        &format!("{place}.cidr"),
        "read as 10.0.0.0/24",
    );
    expect(&block("10.0.0.0/33", &[]), false, Kind::Refused, &format!("{place}.cidr"), "is no network");
    expect(&block("10.0.0.0", &[]), false, Kind::Refused, &format!("{place}.cidr"), "is no network");
    let except = format!("{place}.except[0]");
    expect(&block("10.0.0.0/24", &["10.1.0.0/24"]), true, Kind::Refused, &except, "not inside");
    expect(&block("10.0.0.0/24", &["10.0.0.0/8"]), false, Kind::Refused, &except, "leaves nothing");
    // It might be about anybody.
    expect(&block("10.0.0.0/24", &["nonsense"]), false, Kind::Refused, &except, "is no network");
    assert!(!reaches(&block("10.0.0.0/24", &["10.0.0.2/32"])));
    // The same behind an `except`, in IPv6, and in a ClusterNetworkPolicy.
    expect(&block("10.0.0.0/8", &["10.0.0.77/24"]), false, Kind::Suspicious, &except, "read as 10.0.0.0/24");
    let six = format!("{place}.cidr");
    expect(&block("fd00:1::7/64", &[]), false, Kind::Suspicious, &six, "read as fd00:1::/64");
    let deny = cluster(json!({ "egress": [{ "action": "Deny", "to": [{ "networks": ["10.0.0.77/24"] }] }] }));
    let place = "spec.egress[0].to[0].networks[0]";
    expect(&deny, false, Kind::Suspicious, place, "read as 10.0.0.0/24");
}

#[test]
fn rules_for_a_direction_that_the_policy_is_not_about_have_no_effect() {
    let egress_only = spec(
        json!({ "podSelector": {}, "policyTypes": ["Egress"], "ingress": [{ "ports": [{ "port": 81 }] }],
        "egress": [{}] }),
    );
    expect(&egress_only, true, Kind::Suspicious, "spec.ingress", "have no effect");
    let unknown = spec(json!({ "podSelector": {}, "policyTypes": ["ingress"] }));
    expect(&unknown, true, Kind::Refused, "spec.policyTypes", "neither Ingress nor Egress");
}

#[test]
fn thousands_of_peers_are_enforced_and_told() {
    let selectors: Vec<Value> =
        (0..2000).map(|n| json!({ "podSelector": { "matchLabels": { "app": format!("b{n}") } } })).collect();
    let snapshot = rule(json!({ "from": selectors }));
    assert!(!reaches(&snapshot));
    let warnings = compile(&snapshot, None).warnings;
    assert!(warnings.iter().any(|warning| warning.text.starts_with("2000 selectors in one rule")));
    // Networks are one set, however many: nothing to tell.
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
fn rules_of_cluster_policies_that_cannot_be_understood_fail_closed() {
    let with =
        |action: &str, from: Value| cluster(json!({ "ingress": [{ "action": action, "from": from }] }));
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
        let accept = cluster(
            json!({ "ingress": [{ "action": "Accept", "from": broken }, { "action": "Deny", "from": [{ "namespaces": {} }] }] }),
        );
        assert!(!reaches(&accept));
    }
    let deny = with("Deny", json!([{ "services": {} }]));
    expect(&deny, false, Kind::Refused, "spec.ingress[0]", "denies everything");
}

#[test]
fn protocols_of_cluster_policies_that_make_no_sense_fail_closed() {
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
        assert!(!reaches(&cluster(rule("Deny"))), "{broken}");
        assert!(!reaches(&cluster(rule("Pass"))), "{broken}");
        assert!(
            reaches(&cluster(rule("Accept"))),
            "{broken}: an Accept that matches nothing denies nothing either"
        );
    }
}

#[test]
fn what_the_api_would_refuse_of_a_cluster_policy_is_told() {
    let priority = cluster(
        json!({ "priority": 2000, "ingress": [{ "action": "Deny", "from": [{ "namespaces": {} }] }] }),
    );
    expect(&priority, false, Kind::Refused, "spec.priority", "not from 0 to 1000");
    let nobody =
        cluster(json!({ "subject": {}, "ingress": [{ "action": "Deny", "from": [{ "namespaces": {} }] }] }));
    expect(&nobody, true, Kind::Refused, "spec.subject", "about nobody");
    let many: Vec<Value> = (0..26).map(|_| json!({ "namespaces": {} })).collect();
    let many = cluster(json!({ "ingress": [{ "action": "Deny", "from": many }] }));
    expect(&many, false, Kind::Refused, "spec.ingress[0].from", "26 entries");
}

#[test]
fn domain_names_accept_nothing_and_leave_the_other_peers() {
    let egress = cluster(json!({ "egress": [
        { "action": "Accept", "to": [{ "domainNames": ["example.org"] }, { "networks": ["10.0.0.1/32"] }] },
        { "action": "Deny", "to": [{ "networks": ["0.0.0.0/0"] }] }] }));
    expect(&egress, true, Kind::Unsupported, "spec.egress[0].to[0].domainNames", "not enforced");
}
