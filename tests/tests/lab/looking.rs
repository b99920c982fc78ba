//! A lab that says "all is well" has looked at every node and pod that should be there.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::laboratory::{lab, name, text, Laboratory};
use super::policies::TempDir;

/// Kills the process of n1-pod1.
fn kill_pod(lab: &Laboratory) {
    let list = lab.sh("n1", &format!("{} pod list --json", podwire_tests::podwire()));
    let list: Value = serde_json::from_str(&list).expect("JSON");
    let pod = list["pods"].as_array().expect("pods").iter().find(|pod| pod["name"] == "n1-pod1");
    lab.sh("n1", &format!("kill -9 {}", pod.expect("n1-pod1")["pid"]));
    let end = Instant::now() + Duration::from_secs(20);
    while text(&lab.run(&["status"]).stdout).matches("it is lost").count() == 0 {
        assert!(Instant::now() < end, "{}", text(&lab.run(&["status"]).stdout));
    }
}

#[test]
fn a_dead_pod_is_reported_by_status_heal_and_verify() {
    let lab = Laboratory::up(&["--nodes", "2", "--pods", "2"]);
    kill_pod(&lab);
    let status = lab.run(&["status"]);
    let said = text(&status.stdout);
    assert!(!status.status.success() && said.contains("not healthy"), "{said}");
    assert!(said.contains("problem: n1: pod n1-pod1: it is lost"), "{said}");

    let start = Instant::now();
    let heal = lab.run(&["heal"]);
    let said = text(&heal.stderr);
    assert!(!heal.status.success() && said.contains("pod n1-pod1 on n1: it is lost"), "{said}");
    assert!(said.contains("reboot-node") && start.elapsed() < Duration::from_secs(20), "{said}");

    let (report, held) = lab.json(&["verify", "--timeout", "10s"]);
    assert!(!held && report["holds"] == false, "{report}");
    assert_eq!(report["missing"][0]["name"], "n1-pod1", "{report}");
    let failed =
        report["probes"].as_array().expect("probes").iter().filter(|probe| !probe["failure"].is_null());
    assert_eq!(failed.count(), 0, "the others reach each other: {report}");

    assert!(lab.run(&["break", "reboot-node", "n1"]).status.success());
    assert!(lab.run(&["heal"]).status.success(), "the hint helps");
    lab.assert_model_holds(2, 4, 2);
}

#[test]
fn a_pod_that_was_removed_or_has_no_address_is_reported() {
    let lab = Laboratory::up(&["--nodes", "1", "--pods", "2"]);
    lab.sh("n1", &format!("{} pod rm n1-pod1", podwire_tests::podwire()));
    lab.sh("n1-pod2", "ip -6 address flush dev eth0 scope global");
    let said = text(&lab.run(&["status"]).stdout);
    for words in ["pod n1-pod1: it does not exist", "pod n1-pod2: it has no IPv6 address"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let (report, held) = lab.json(&["verify"]);
    assert!(!held && report["missing"].as_array().map(Vec::len) == Some(2), "{report}");
}

#[test]
fn verify_probes_around_a_sick_node() {
    let lab = Laboratory::up(&["--nodes", "3", "--pods", "1"]);
    assert!(lab.run(&["break", "link-down", "n2"]).status.success());
    assert!(lab.run(&["break", "remove-node", "n3"]).status.success());
    let verify = lab.run(&["verify", "--timeout", "1s"]);
    let said = text(&verify.stdout);
    assert!(!verify.status.success(), "{said}{}", text(&verify.stderr));
    for words in [
        "missing: node n2: 192.168.10.12: interface eth0 is down",
        "missing: pod n3-pod1: its node n3 does not run",
        "missing: node n3: ",
        "failed: n1-pod1 to n2-pod1: ",
        "the network model does not hold",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let matrix: Vec<&str> = said.lines().filter(|line| line.starts_with("n1 ")).collect();
    assert!(matrix[0].contains("ok"), "n1 reaches its own pod: {said}");
    let (status, healthy) = lab.json(&["status"]);
    assert!(!healthy && status["healthy"] == false, "{status}");
}

#[test]
fn what_policies_deny_is_not_broken() {
    let dir = TempDir::new();
    let closed =
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: closed, namespace: shop}\n\
                  spec: {podSelector: {}}\n";
    let pod = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: db, namespace: shop}\nspec: {nodeName: n2}\n";
    dir.write("shop.yaml", &format!("{closed}{pod}"));
    let lab = Laboratory::up(&["--nodes", "2", "--pods", "1", "--policies", dir.path()]);
    let verify = lab.run(&["verify", "--timeout", "1s"]);
    let said = text(&verify.stdout);
    assert!(verify.status.success(), "{said}");
    for words in [
        "the network model holds where policies allow it",
        "denied: n1-pod1 to shop/db: ingress of shop/db: the pod is isolated and no rule allows it: shop/closed",
        "packets, policies deny ",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(!said.contains("failed: "), "{said}");
    assert!(lab.run(&["heal"]).status.success());

    // On the node itself, its agent has the objects.
    let own = || lab.run(&["exec", "n2", "--", &podwire_tests::podwire(), "verify", "--timeout", "1s"]);
    let denied =
        "denied: default/n2-pod1 to shop/db: ingress of shop/db: the pod is isolated and no rule allows it: shop/closed";
    let verify = own();
    let said = text(&verify.stdout);
    assert!(verify.status.success() && said.contains(denied), "{said}{}", text(&verify.stderr));
    assert!(said.contains("holds where policies allow it"), "{said}");
    let broken = "nft add table inet broken
                  nft add chain inet broken in '{ type filter hook forward priority -200; }'
                  nft add rule inet broken in drop
                  nft add table bridge broken; nft add chain bridge broken in '{ type filter hook forward priority -400; }'
                  nft add rule bridge broken in drop";
    lab.sh("n2", broken);
    let verify = own();
    let said = text(&verify.stdout);
    assert!(
        !verify.status.success() && said.contains("failed: shop/db to default/n2-pod1: no answer"),
        "{said}"
    );
    assert!(said.contains(denied) && !said.contains("failed: default/n2-pod1 to shop/db"), "{said}");
    lab.sh("n2", "nft delete table inet broken; nft delete table bridge broken");

    // The rules stay when the agent ends. Without it, verify has no objects to decide by.
    assert!(lab.run(&["break", "kill-agent", "n2"]).status.success());
    let verify = own();
    let said = text(&verify.stdout);
    assert!(
        !verify.status.success() && said.contains("failed: default/n2-pod1 to shop/db: no answer"),
        "{said}"
    );
    assert!(said.contains("but: the policies of this node are unknown"), "{said}");

    // A policy that is not enforced is a failure.
    lab.sh("n2", "nft flush ruleset");
    let said = text(&lab.run(&["verify", "--timeout", "1s"]).stdout);
    assert!(said.contains("arrived, but policies deny it"), "{said}");
}

/// Packets that are lost take their time. A line on the terminal shows how many packets are done, and disappears.
#[test]
fn verify_shows_its_progress_if_standard_error_is_a_terminal() {
    let lab = Laboratory::up(&["--nodes", "2", "--pods", "1"]);
    lab.sh(
        "n2",
        "nft add table inet broken
         nft add chain inet broken forward '{ type filter hook forward priority -200; }'
         nft add rule inet broken forward drop",
    );
    let verify = format!("{} lab verify --name {} --timeout 500ms", podwire_tests::podwire(), lab.name);
    let on_terminal = |redirected: &str| {
        let command = format!("{verify} {redirected}");
        let output = Command::new("script").args(["-qec", &command, "/dev/null"]).output();
        text(&output.expect("script").stdout)
    };
    let shown = on_terminal("2>&1 >/dev/null");
    let lines: Vec<&str> = shown.split('\r').filter(|line| line.contains(" of 48 probes")).collect();
    let done: Vec<usize> = lines.iter().filter_map(|line| line.split(' ').next()?.parse().ok()).collect();
    assert!(done.len() > 1 && done.is_sorted() && done.len() == lines.len(), "{shown:?}");
    assert!(lines.iter().any(|line| line.contains(" without the expected answer")), "{shown:?}");
    assert!(shown.ends_with("\r\x1b[K"), "{shown:?}");

    assert!(!on_terminal("2>/dev/null").contains("probes\x1b"), "on standard output");
    let piped = lab.run(&["verify", "--timeout", "500ms"]);
    assert_eq!(text(&piped.stderr), "");
    assert!(!text(&piped.stdout).contains('\r'), "{}", text(&piped.stdout));
}

#[test]
fn a_backend_that_the_kernel_lacks_is_refused_at_once() {
    for backend in ["wireguard", "ipip"] {
        let (name, start) = (name(), Instant::now());
        let words =
            ["up", "--name", &name, "--nodes", "1", "--pods", "0", "--family", "ipv4", "--backend", backend];
        let up = lab(&words);
        let said = text(&up.stderr);
        let took = start.elapsed();
        lab(&["down", "--name", &name]);
        if !up.status.success() {
            let says = |words: &str| said.contains(words);
            assert!(says("(kernel: ") && says(&format!("modprobe {backend}")), "{said}");
        }
        assert!(took < Duration::from_secs(30), "{backend}: {took:?}: {said}");
    }
}
