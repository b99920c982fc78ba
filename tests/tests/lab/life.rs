//! Creating, finding and removing labs, also after crashes.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use podwire_tests::podwire;

use super::laboratory::{lab, name, text, Laboratory};

/// The processes that hold the machines of a lab.
fn processes(lab: &str) -> Vec<u32> {
    let output = Command::new("pgrep").args(["-f", &format!("^podwire pause lab-{lab}/")]).output();
    text(&output.expect("pgrep").stdout).lines().filter_map(|line| line.parse().ok()).collect()
}

fn sh(script: &str) -> String {
    text(&Command::new("sh").args(["-c", script]).output().expect("sh").stdout)
}

/// What a lab must not touch: links, routes, rules, sysctls and files of the machine.
fn machine() -> String {
    sh("ip -o link; ip route; ip -6 route | sed 's/ expires [0-9]*sec//'; nft -s list ruleset; cat /proc/sys/net/ipv4/ip_forward; hostname
        find /etc/cni /var/lib/cni /opt/cni /run/netns /run/flannel 2>/dev/null | sort")
}

#[test]
fn a_lab_touches_nothing_of_the_machine_and_leaves_nothing() {
    for network in ["flannel", "calico"] {
        is_created_and_removed(network);
    }
}

fn is_created_and_removed(network: &str) {
    let before = machine();
    let one = Laboratory::up(&["--nodes", "2", "--pods", "1", "--cni-network", network]);
    assert_eq!(machine(), before);
    assert_eq!(processes(&one.name).len(), 3, "a router and two nodes");
    let dir = format!("/run/podwire/lab/{}", one.name);
    assert!(std::path::Path::new(&dir).is_dir());
    let down = one.run(&["down"]);
    assert!(down.status.success(), "{}", text(&down.stderr));
    assert_eq!(machine(), before);
    assert!(processes(&one.name).is_empty() && !std::path::Path::new(&dir).exists());
    let again = one.run(&["down"]);
    assert!(text(&again.stderr).contains("there is no lab"), "{}", text(&again.stderr));
}

#[test]
fn a_second_up_reports_the_existing_lab() {
    let one = Laboratory::up(&["--nodes", "2", "--pods", "0"]);
    let again = one.run(&["up", "--nodes", "3"]);
    let said = text(&again.stderr);
    assert!(!again.status.success(), "{said}");
    for words in ["already exists: 2 nodes", "backend vxlan", "podwire lab down --name"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert_eq!(one.status()["nodes"].as_array().map(Vec::len), Some(2), "unchanged");
}

#[test]
fn down_succeeds_after_machines_were_killed() {
    let one = Laboratory::up(&["--nodes", "3", "--pods", "1"]);
    assert_eq!(processes(&one.name).len(), 4);
    for node in ["n2", "n3"] {
        sh(&format!("pkill -9 -f '^podwire pause lab-{}/{node}$'", one.name));
    }
    // The kernel first ends everything on them.
    let end = Instant::now() + Duration::from_secs(60);
    let mut said = one.run(&["status"]);
    while text(&said.stdout).matches(" gone ").count() < 2 {
        assert!(Instant::now() < end, "{}", text(&said.stdout));
        said = one.run(&["status"]);
    }
    assert!(!said.status.success(), "a lab without some machines is not healthy");
    let down = one.run(&["down"]);
    assert!(down.status.success(), "{}", text(&down.stderr));
    assert!(processes(&one.name).is_empty());
}

#[test]
fn an_interrupted_up_is_cleaned_by_the_next_up_or_down() {
    for (at, moment) in [20, 120, 300, 700, 1500].into_iter().enumerate() {
        let name = name();
        let mut command = Command::new(podwire());
        command.args(["lab", "up", "--name", &name, "--nodes", "2", "--pods", "1"]);
        let mut up = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("podwire");
        std::thread::sleep(Duration::from_millis(moment));
        up.kill().expect("kill");
        up.wait().expect("its end");
        let next = match at % 2 {
            0 => lab(&["up", "--name", &name, "--nodes", "1", "--pods", "1"]),
            _ => lab(&["down", "--name", &name]),
        };
        let said = text(&next.stderr);
        // The killed command may have finished, or not have begun.
        let fine =
            next.status.success() || said.contains("already exists") || said.contains("there is no lab");
        assert!(fine, "{moment} ms: {said}");
        lab(&["down", "--name", &name]);
        // A process that was not recorded yet ends when its pipe closes.
        let end = Instant::now() + Duration::from_secs(30);
        while !processes(&name).is_empty() {
            assert!(Instant::now() < end, "{moment} ms");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(!std::path::Path::new("/run/podwire/lab").join(&name).exists(), "{moment} ms");
    }
}

#[test]
fn commands_run_on_nodes_on_the_router_and_in_pods() {
    let one = Laboratory::up(&["--nodes", "2", "--pods", "1"]);
    assert_eq!(one.sh("n1", "hostname").trim(), "n1");
    assert_eq!(one.sh("router", "hostname; ls /sys/class/net | grep -c '^n[12]$'").trim(), "router\n2");
    assert_eq!(one.sh("n2-pod1", "hostname").trim(), "n2-pod1");
    let ended = one.run(&["exec", "n1", "--", "sh", "-c", "exit 7"]);
    assert_eq!(ended.status.code(), Some(7));
    let nowhere = one.run(&["exec", "n9", "--", "true"]);
    assert!(text(&nowhere.stderr).contains("no running node or pod \"n9\""), "{}", text(&nowhere.stderr));

    // A node has its own files where programs write, and otherwise sees those of the machine.
    one.sh("n1", "touch /run/mine /var/lib/mine /etc/cni/mine && test -r /etc/passwd");
    one.sh("n2", "test ! -e /run/mine && test ! -e /var/lib/mine && test ! -e /etc/cni/mine");
    assert!(["/run/mine", "/var/lib/mine", "/etc/cni/mine"]
        .iter()
        .all(|file| !std::path::Path::new(file).exists()));
    assert!(one.sh("n1", "cat /etc/cni/net.d/10-podwire.conflist").contains("flannel"));
}

#[test]
fn the_store_etcd_is_refused_if_etcd_is_not_installed() {
    let name = name();
    let mut command = Command::new(podwire());
    command.args(["lab", "up", "--store", "etcd", "--name", &name]).env("PATH", "/nonexistent");
    let said = text(&command.output().expect("podwire").stderr);
    assert!(said.contains("etcd, which is not installed") && said.contains("--store embedded"), "{said}");
}

#[test]
fn a_demo_that_is_killed_leaves_no_cluster() {
    let mut demo = Command::new(podwire());
    let mut demo = demo.arg("demo").stdout(Stdio::null()).spawn().expect("podwire");
    let name = format!("demo-{}", demo.id());
    let wait = |what: &str, is_so: &dyn Fn() -> bool| {
        let end = Instant::now() + Duration::from_secs(30);
        while !is_so() {
            assert!(Instant::now() < end, "{what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    wait("the cluster of the demo starts", &|| !processes(&name).is_empty());
    demo.kill().expect("kill");
    demo.wait().expect("its end");
    wait("the cluster is removed", &|| processes(&name).is_empty());
}

#[test]
fn labs_are_independent() {
    let (one, two) =
        (Laboratory::up(&["--nodes", "1", "--pods", "1"]), Laboratory::up(&["--nodes", "1", "--pods", "1"]));
    let alone = |lab: &Laboratory| lab.sh("n1", "ip route show proto 112 | wc -l").trim() == "0";
    assert!(alone(&one) && alone(&two));
    drop(one);
    assert_eq!(two.sh("n1-pod1", "echo here").trim(), "here");
}
