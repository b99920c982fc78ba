//! Policies under faults: no denied packet passes at any moment, and allowed packets continue.

use std::time::{Duration, Instant};

use podwire_tests::{ours, podwire};
use serde_json::json;

use crate::continuous_probe::{ContinuousProbe, FlowResult};
use crate::policies::{add_all, stage, stage_of, start, FOLDER};
use crate::stage::Stage;

/// Changes are atomic: no packet is lost.
const NO_GAP: Duration = Duration::ZERO;
/// The time limit of a repair. On a busy machine one of several attempts must meet it.
const REPAIR_LIMIT: Duration = Duration::from_secs(2);
const TRIES: usize = 6;

/// A denied flow and an allowed one.
const PAIRS: [(&str, &str); 2] = [("other", "db"), ("web", "db")];

/// A policy of the database, with a rule that depends on `number`.
fn policy(name: &str, number: usize) -> String {
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: {name}, namespace: shop}}\nspec:\n  \
         podSelector: {{matchLabels: {{app: db}}}}\n  ingress:\n  - from: [{{podSelector: {{matchLabels: {{app: web}}}}}}]\n  \
         - from: [{{ipBlock: {{cidr: 198.51.{number}.0/24}}}}]\n"
    )
}

/// Whether the policy table in the kernel contains this text.
fn is_enforced(stage: &Stage, words: &str) -> bool {
    stage.node(1).can(&format!("nft list table inet podwire_policy | grep -qF '{words}'"))
}

/// All policy rules, sorted, because their order depends on the order of the changes.
fn rules(stage: &Stage) -> String {
    stage.node(1).sh("for family in inet bridge; do nft -s list table $family podwire_policy | sort; done")
}

/// Waits until the allowed pods have resolved each other's hardware address. On a busy machine a neighbour request may
/// be lost, and the kernel repeats it only after a second.
fn wait_for_neighbours(stage: &Stage) {
    for address in [stage.address(1, "db"), stage.address6(1, "db")] {
        stage.wait_until("web reaches db", |stage| {
            stage.node(1).can(&format!("ip netns exec web ping -c 1 -W 2 {address}"))
        });
    }
}

/// Checks that the allowed flow had no gap longer than `max_gap`, and that nothing of the other flows arrived.
#[track_caller]
fn assert_policies_held(results: &[FlowResult], max_gap: Duration) {
    for result in results {
        if result.is_from("web") {
            result.assert_arrived(max_gap);
        } else {
            result.assert_none_arrived();
        }
    }
}

/// Repeats a damage until it is repaired in time. `damage` returns how long the repair took.
#[track_caller]
fn assert_repaired(what: &str, damage: impl Fn() -> Duration) {
    let mut took: Vec<Duration> = Vec::new();
    while took.len() < TRIES && !took.iter().any(|one| *one <= REPAIR_LIMIT) {
        took.push(damage());
    }
    assert!(took.iter().any(|one| *one <= REPAIR_LIMIT), "{what}: repaired only after {took:?}");
}

#[test]
fn an_agent_killed_during_updates_opens_and_closes_nothing() {
    let mut stage = stage();
    add_all(&stage);
    wait_for_neighbours(&stage);
    let probe = ContinuousProbe::start(&stage, &PAIRS);
    let node = stage.node(1);
    node.write("/run/test/more.yaml", &policy("more", 7));
    node.write("/run/test/other.yaml", &policy("more", 8));
    let update = format!("cp /run/test/$name.yaml {FOLDER}/more.yaml; sleep 0.003");
    let script = format!("until [ -e /run/test/over ]; do for name in more other; do {update}; done; done");
    let mut updates = node.command("sh").args(["-c", &script]).spawn().expect("nsenter");
    for round in 0..8 {
        // A different moment of the updates each time.
        std::thread::sleep(Duration::from_millis(50 + round));
        stage.kill_agent(1);
        start(&mut stage, "flannel");
    }
    stage.node(1).sh("touch /run/test/over");
    assert!(updates.wait().expect("wait for the updates").success());
    stage.node(1).write(&format!("{FOLDER}/more.yaml"), &policy("more", 9));
    stage.wait_until("the agent follows the files again", |stage| is_enforced(stage, "198.51.9.0"));
    assert_policies_held(&probe.stop(), NO_GAP);
}

#[test]
fn damaged_rules_are_repaired_within_two_seconds() {
    let mut stage = stage();
    add_all(&stage);
    wait_for_neighbours(&stage);
    let before = rules(&stage);
    for damage in [
        "nft flush ruleset",
        "nft delete table inet podwire_policy",
        "nft flush chain inet podwire_policy ingress",
        "nft insert rule inet podwire_policy ingress accept",
        "nft flush map inet podwire_policy ingress_4",
        "nft flush map inet podwire_policy ingress_6",
    ] {
        assert_repaired(damage, || {
            let probe = ContinuousProbe::start(&stage, &PAIRS);
            std::thread::sleep(Duration::from_millis(300));
            let began = Instant::now();
            stage.node(1).sh(damage);
            let done = Instant::now();
            stage.wait_until(damage, |stage| rules(stage) == before);
            std::thread::sleep(Duration::from_millis(300));
            let took = |result: FlowResult| {
                if result.is_from("web") {
                    return result.longest_gap();
                }
                let mut arrivals = result.arrivals();
                assert!(arrivals.all(|sent| sent >= began), "{damage}: a packet passed before the damage");
                let last = result.arrivals().last();
                last.map_or(Duration::ZERO, |last| last.saturating_duration_since(done))
            };
            probe.stop().into_iter().map(took).max().expect("flows")
        });
    }
    // Without the agent nothing is repaired, and the probe's packets arrive: the probe can fail.
    stage.kill_agent(1);
    let probe = ContinuousProbe::start(&stage, &PAIRS);
    stage.node(1).sh("nft flush ruleset");
    std::thread::sleep(REPAIR_LIMIT);
    assert!(probe.stop().iter().all(|result| result.arrivals().count() > 50));
}

#[test]
fn while_policy_files_cannot_be_read_the_last_policies_stay() {
    let stage = stage();
    add_all(&stage);
    wait_for_neighbours(&stage);
    let probe = ContinuousProbe::start(&stage, &PAIRS);
    let node = stage.node(1);
    let assert_unchanged = |what: &str| {
        assert_eq!(stage.status(1)["policies"]["policies"], 1, "{what}");
        std::thread::sleep(Duration::from_millis(500));
    };
    // Invalid YAML, a dangling symbolic link, no directory.
    node.write(&format!("{FOLDER}/wrong.yaml"), "kind: [");
    assert_unchanged("invalid YAML");
    node.sh(&format!("ln -sf /nowhere {FOLDER}/wrong.yaml && touch {FOLDER}/.changed"));
    assert_unchanged("a dangling symbolic link");
    node.sh(&format!("rm {FOLDER}/wrong.yaml && mv {FOLDER} /run/away && touch /run/away/.changed"));
    assert_unchanged("no directory");
    assert_policies_held(&probe.stop(), NO_GAP);
    // Another program deletes map elements meanwhile: the agent restores the last known rules. Until then packets of
    // pods without an element are dropped.
    assert_repaired("no directory, and damaged rules", || {
        let probe = ContinuousProbe::start(&stage, &PAIRS);
        node.sh("nft flush map inet podwire_policy egress_4");
        assert_unchanged("no directory, and damaged rules");
        let took = |result: FlowResult| {
            if result.is_from("web") {
                return result.longest_gap();
            }
            result.assert_none_arrived();
            Duration::ZERO
        };
        probe.stop().into_iter().map(took).max().expect("flows")
    });
    let probe = ContinuousProbe::start(&stage, &PAIRS);
    node.sh(&format!("mv /run/away {FOLDER}"));
    node.write(&format!("{FOLDER}/more.yaml"), &policy("more", 7));
    stage.wait_until("the files are followed again", |stage| is_enforced(stage, "198.51.7.0"));
    std::thread::sleep(Duration::from_millis(500));
    assert_policies_held(&probe.stop(), NO_GAP);
}

#[test]
fn a_policy_deleted_and_created_in_a_burst_leaves_other_policies_in_force() {
    let stage = stage();
    add_all(&stage);
    wait_for_neighbours(&stage);
    let probe = ContinuousProbe::start(&stage, &PAIRS);
    let node = stage.node(1);
    node.write("/run/test/more.yaml", &policy("more", 7));
    let burst = |pause: &str| {
        node.sh(&format!(
            "for n in $(seq 50); do cp /run/test/more.yaml {FOLDER}/more.yaml; {pause}; rm {FOLDER}/more.yaml; {pause}; done"
        ));
    };
    // Without pauses, and with pauses that let the agent see each change.
    burst(":");
    burst("sleep 0.03");
    stage.wait_until("the policy is removed", |stage| !is_enforced(stage, "198.51.7.0"));
    node.sh(&format!("cp /run/test/more.yaml {FOLDER}/more.yaml"));
    stage.wait_until("the policy is enforced again", |stage| is_enforced(stage, "198.51.7.0"));
    assert_policies_held(&probe.stop(), NO_GAP);
}

/// Pods that are attached and detached repeatedly. A policy denies them all egress.
const SHORT_LIVED: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: short1, namespace: shop, labels: {app: short}}
---
apiVersion: v1
kind: Pod
metadata: {name: short2, namespace: shop, labels: {app: short}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: short, namespace: shop}
spec:
  podSelector: {matchLabels: {app: short}}
  policyTypes: [Egress]
"#;

/// Attaches and detaches a pod `times` times, with the conflist that the agent wrote. An ADD has 10 s until its policies are
/// enforced. If this machine stands still for that long, it is told to try again, and does so once, as a runtime would.
fn attach_and_detach(stage: &Stage, name: &str, times: usize) {
    let (podwire, plugins) = (podwire(), ours());
    let rest = format!(
        "cbr0 {name} --plugin-dir {plugins} --conf-dir /run/cni-conf \
         --arg IgnoreUnknown=1 --arg K8S_POD_NAMESPACE=shop --arg K8S_POD_NAME={name}"
    );
    stage.node(1).sh(&format!(
        "for n in $(seq {times}); do \
           {podwire} cni add {rest} >/dev/null || {podwire} cni add {rest} >/dev/null || exit 1; \
           {podwire} cni del {rest} || exit 1; \
         done"
    ));
}

/// What pods could leave behind: rules, links, routes, files.
fn traces(stage: &Stage) -> String {
    stage
        .node(1)
        .sh("nft -s list ruleset; ip -o link | sed 's/^[0-9]*: //' | sort; ip route; ip -6 route | sort; \
         find /run/podwire /var/lib/cni -type f ! -name '*.lock' ! -name 'last_reserved*' | sort")
}

#[test]
fn many_denied_pods_are_attached_and_detached_and_no_packet_of_them_passes() {
    // Few addresses, which are used again. A thousand addresses would fill the neighbour table, which all namespaces of
    // the machine share, and IPv6 would fail at times in other tests too.
    let small = json!({
        "Network": "10.244.0.0/16", "SubnetLen": 28, "EnableIPv6": true, "IPv6Network": "fd00:244::/112", "IPv6SubnetLen": 124,
        "Backend": {"Type": "vxlan"},
    });
    let mut stage = stage_of(&small);
    start(&mut stage, "flannel");
    stage.node(1).write(&format!("{FOLDER}/short.yaml"), SHORT_LIVED);
    stage.wait_until("their policy is loaded", |stage| stage.status(1)["policies"]["policies"] == 2);
    add_all(&stage);
    wait_for_neighbours(&stage);
    let short_lived = ["short1", "short2"];
    // Once before, to create what stays: the bridge, tables, directories.
    for name in short_lived {
        stage.node(1).pod(name);
        attach_and_detach(&stage, name, 1);
    }
    let are_removed = |stage: &Stage| {
        let status = stage.status(1);
        status["policies"]["interfaces"] == 3 && status["fastPath"]["pods"] == 3
    };
    stage.wait_until("their interfaces are removed", are_removed);
    let before = traces(&stage);
    // They send all the time, also while their ADD runs.
    let pairs: Vec<_> = short_lived.iter().flat_map(|name| [(*name, "db"), (*name, "other")]).collect();
    let probe = ContinuousProbe::start(&stage, &[&PAIRS, &pairs[..]].concat());
    // A thousand pods; `make test` attaches a tenth of them.
    let rounds = if podwire_tests::is_whole() { 500 } else { 50 };
    let (shared, mut succeeded) = (&stage, Vec::new());
    std::thread::scope(|scope| {
        let threads = short_lived.map(|name| scope.spawn(move || attach_and_detach(shared, name, rounds)));
        succeeded.extend(threads.into_iter().map(|thread| thread.join().is_ok()));
    });
    let results = probe.stop();
    assert_eq!(succeeded, [true, true], "all were attached and detached");
    assert_policies_held(&results, NO_GAP);
    stage.wait_until("their interfaces are removed", are_removed);
    assert_eq!(traces(&stage), before, "nothing is left behind");
}
