//! Policies under faults: no denied packet passes at any moment, and allowed packets continue.

use std::time::{Duration, Instant};

use podwire_tests::{ours, podwire};
use serde_json::json;

use crate::policies::{add_all, stage, stage_of, start, FOLDER};
use crate::stage::Stage;
use crate::vigil::{Seen, Vigil};

/// Changes are atomic: nothing is lost.
const NEVER: Duration = Duration::ZERO;
/// The limit of a repair on an idle machine. On a busy machine one of these attempts must meet it.
const REPAIR_LIMIT: Duration = Duration::from_secs(2);
const TRIES: usize = 6;

/// Who is forbidden and who is allowed to talk to the database.
const PAIRS: [(&str, &str); 2] = [("other", "db"), ("web", "db")];

/// The policy of the database, with another rule each time.
fn policy(name: &str, number: usize) -> String {
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: {name}, namespace: shop}}\nspec:\n  \
         podSelector: {{matchLabels: {{app: db}}}}\n  ingress:\n  - from: [{{podSelector: {{matchLabels: {{app: web}}}}}}]\n  \
         - from: [{{ipBlock: {{cidr: 198.51.{number}.0/24}}}}]\n"
    )
}

/// Whether the program in the kernel has this in it.
fn is_enforced(stage: &Stage, words: &str) -> bool {
    stage.node(1).can(&format!("nft list table inet podwire_policy | grep -qF '{words}'"))
}

/// All rules about pods, whatever the order in which they were made.
fn rules(stage: &Stage) -> String {
    stage.node(1).sh("for family in inet bridge; do nft -s list table $family podwire_policy | sort; done")
}

/// Until those who may talk have found each other: a question for a neighbour that is lost on a busy machine is asked
/// again after a second.
fn meet(stage: &Stage) {
    for address in [stage.address(1, "db"), stage.address6(1, "db")] {
        stage.wait_until("web reaches db", |stage| {
            stage.node(1).can(&format!("ip netns exec web ping -c 1 -W 2 {address}"))
        });
    }
}

#[track_caller]
fn assert_kept_apart(all: &[Seen], allowed_lost: Duration) {
    for seen in all {
        if seen.is_from("web") {
            seen.assert_heard(allowed_lost);
        } else {
            seen.assert_silent();
        }
    }
}

/// Repeats a damage until it was repaired in time; `break_it` returns how long it took.
#[track_caller]
fn assert_repaired(what: &str, break_it: impl Fn() -> Duration) {
    let mut took: Vec<Duration> = Vec::new();
    while took.len() < TRIES && !took.iter().any(|one| *one <= REPAIR_LIMIT) {
        took.push(break_it());
    }
    assert!(took.iter().any(|one| *one <= REPAIR_LIMIT), "{what}: repaired only after {took:?}");
}

#[test]
fn an_agent_killed_in_the_middle_of_updates_opens_and_closes_nothing() {
    let mut stage = stage();
    add_all(&stage);
    meet(&stage);
    let vigil = Vigil::begin(&stage, &PAIRS);
    let node = stage.node(1);
    node.write("/run/test/more.yaml", &policy("more", 7));
    node.write("/run/test/other.yaml", &policy("more", 8));
    let update = format!("cp /run/test/$name.yaml {FOLDER}/more.yaml; sleep 0.003");
    let script = format!("until [ -e /run/test/over ]; do for name in more other; do {update}; done; done");
    let mut updates = node.command("sh").args(["-c", &script]).spawn().expect("nsenter");
    for round in 0..8 {
        // At another moment each time.
        std::thread::sleep(Duration::from_millis(50 + round));
        stage.kill_agent(1);
        start(&mut stage, "flannel");
    }
    stage.node(1).sh("touch /run/test/over");
    assert!(updates.wait().expect("its end").success());
    stage.node(1).write(&format!("{FOLDER}/more.yaml"), &policy("more", 9));
    stage.wait_until("it goes on where the files are", |stage| is_enforced(stage, "198.51.9.0"));
    assert_kept_apart(&vigil.end(), NEVER);
}

#[test]
fn damaged_rules_are_repaired_within_two_seconds() {
    let mut stage = stage();
    add_all(&stage);
    meet(&stage);
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
            let vigil = Vigil::begin(&stage, &PAIRS);
            std::thread::sleep(Duration::from_millis(300));
            let began = Instant::now();
            stage.node(1).sh(damage);
            let done = Instant::now();
            stage.wait_until(damage, |stage| rules(stage) == before);
            std::thread::sleep(Duration::from_millis(300));
            let took = |seen: Seen| {
                if seen.is_from("web") {
                    return seen.longest_silence();
                }
                assert!(seen.arrivals().all(|one| one >= began), "{damage}: it passed before the damage");
                seen.arrivals().last().map_or(Duration::ZERO, |last| last.saturating_duration_since(done))
            };
            vigil.end().into_iter().map(took).max().expect("flows")
        });
    }
    // Without the agent nothing is repaired, and the probe sees that.
    stage.kill_agent(1);
    let vigil = Vigil::begin(&stage, &PAIRS);
    stage.node(1).sh("nft flush ruleset");
    std::thread::sleep(REPAIR_LIMIT);
    assert!(vigil.end().iter().all(|seen| seen.arrivals().count() > 50));
}

#[test]
fn while_the_source_of_policies_is_away_all_stays() {
    let stage = stage();
    add_all(&stage);
    meet(&stage);
    let vigil = Vigil::begin(&stage, &PAIRS);
    let node = stage.node(1);
    let stays = |what: &str| {
        assert_eq!(stage.status(1)["policies"]["policies"], 1, "{what}");
        std::thread::sleep(Duration::from_millis(500));
    };
    // A mistake, a file that cannot be read, no file at all where one was named, no folder.
    node.write(&format!("{FOLDER}/wrong.yaml"), "kind: [");
    stays("a mistake");
    node.sh(&format!("ln -sf /nowhere {FOLDER}/wrong.yaml && touch {FOLDER}/.changed"));
    stays("a file that is not there");
    node.sh(&format!("rm {FOLDER}/wrong.yaml && mv {FOLDER} /run/away && touch /run/away/.changed"));
    stays("no folder");
    assert_kept_apart(&vigil.end(), NEVER);
    // Another program breaks the rules meanwhile: the agent restores the last known rules. Until then pods without rules
    // are silent.
    assert_repaired("no folder, and broken rules", || {
        let vigil = Vigil::begin(&stage, &PAIRS);
        node.sh("nft flush map inet podwire_policy egress_4");
        stays("no folder, and broken rules");
        let took = |seen: Seen| {
            if seen.is_from("web") {
                return seen.longest_silence();
            }
            seen.assert_silent();
            Duration::ZERO
        };
        vigil.end().into_iter().map(took).max().expect("flows")
    });
    let vigil = Vigil::begin(&stage, &PAIRS);
    node.sh(&format!("mv /run/away {FOLDER}"));
    node.write(&format!("{FOLDER}/more.yaml"), &policy("more", 7));
    stage.wait_until("the files are followed again", |stage| is_enforced(stage, "198.51.7.0"));
    std::thread::sleep(Duration::from_millis(500));
    assert_kept_apart(&vigil.end(), NEVER);
}

#[test]
fn a_policy_deleted_and_made_again_in_a_burst_leaves_the_one_beside_it_in_force() {
    let stage = stage();
    add_all(&stage);
    meet(&stage);
    let vigil = Vigil::begin(&stage, &PAIRS);
    let node = stage.node(1);
    node.write("/run/test/more.yaml", &policy("more", 7));
    let burst = |pause: &str| {
        node.sh(&format!(
            "for n in $(seq 50); do cp /run/test/more.yaml {FOLDER}/more.yaml; {pause}; rm {FOLDER}/more.yaml; {pause}; done"
        ));
    };
    // As fast as it goes, and so that each is seen.
    burst(":");
    burst("sleep 0.03");
    stage.wait_until("it is gone", |stage| !is_enforced(stage, "198.51.7.0"));
    node.sh(&format!("cp /run/test/more.yaml {FOLDER}/more.yaml"));
    stage.wait_until("it is back", |stage| is_enforced(stage, "198.51.7.0"));
    assert_kept_apart(&vigil.end(), NEVER);
}

/// Pods that come and go: they may say nothing to anybody.
const PASSERS: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: passer1, namespace: shop, labels: {app: passer}}
---
apiVersion: v1
kind: Pod
metadata: {name: passer2, namespace: shop, labels: {app: passer}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: passers, namespace: shop}
spec:
  podSelector: {matchLabels: {app: passer}}
  policyTypes: [Egress]
"#;

/// Attaches a pod and detaches it again, this often, by the list of plugins that the agent wrote.
fn come_and_go(stage: &Stage, name: &str, times: usize) {
    let (podwire, plugins) = (podwire(), ours());
    let rest = format!(
        "cbr0 {name} --plugin-dir {plugins} --conf-dir /run/cni-conf \
         --arg IgnoreUnknown=1 --arg K8S_POD_NAMESPACE=shop --arg K8S_POD_NAME={name}"
    );
    stage.node(1).sh(&format!(
        "for n in $(seq {times}); do {podwire} cni add {rest} >/dev/null && {podwire} cni del {rest} || exit 1; done"
    ));
}

/// All that pods leave behind: rules, links, ledger files.
fn traces(stage: &Stage) -> String {
    stage
        .node(1)
        .sh("nft -s list ruleset; ip -o link | sed 's/^[0-9]*: //' | sort; ip route; ip -6 route | sort; \
         find /run/podwire /var/lib/cni -type f ! -name '*.lock' ! -name 'last_reserved*' | sort")
}

#[test]
fn many_pods_come_and_go_and_none_sends_a_packet() {
    // Few addresses, which come again: with a thousand of them the neighbours of those who stay would fill the kernel's
    // one table of neighbours, and IPv6 would fail now and then in every namespace of this machine, other tests' among
    // them.
    let small = json!({
        "Network": "10.244.0.0/16", "SubnetLen": 28, "EnableIPv6": true, "IPv6Network": "fd00:244::/112", "IPv6SubnetLen": 124,
        "Backend": {"Type": "vxlan"},
    });
    let mut stage = stage_of(&small);
    start(&mut stage, "flannel");
    stage.node(1).write(&format!("{FOLDER}/passers.yaml"), PASSERS);
    stage.wait_until("their policy is known", |stage| stage.status(1)["policies"]["policies"] == 2);
    add_all(&stage);
    meet(&stage);
    let passers = ["passer1", "passer2"];
    // Once, so that all is there that stays.
    for name in passers {
        stage.node(1).pod(name);
        come_and_go(&stage, name, 1);
    }
    let are_gone = |stage: &Stage| stage.status(1)["policies"]["interfaces"] == 3;
    stage.wait_until("they are forgotten", are_gone);
    let before = traces(&stage);
    // They speak all the time, also before their ADD is answered.
    let pairs: Vec<_> = passers.iter().flat_map(|name| [(*name, "db"), (*name, "other")]).collect();
    let vigil = Vigil::begin(&stage, &[&PAIRS, &pairs[..]].concat());
    // A thousand pods in all; the gate attaches a tenth of them.
    let rounds = if podwire_tests::is_whole() { 500 } else { 50 };
    let (shared, mut passed) = (&stage, Vec::new());
    std::thread::scope(|scope| {
        let threads = passers.map(|name| scope.spawn(move || come_and_go(shared, name, rounds)));
        passed.extend(threads.into_iter().map(|thread| thread.join().is_ok()));
    });
    let seen = vigil.end();
    assert_eq!(passed, [true, true], "each came and went");
    assert_kept_apart(&seen, NEVER);
    stage.wait_until("they are forgotten", are_gone);
    assert_eq!(traces(&stage), before, "nothing is left of them");
}
