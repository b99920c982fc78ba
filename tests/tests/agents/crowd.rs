//! Five hundred routed pods come and go on three nodes at once, while the agents are killed again and again: no address is given twice, none is
//! lost, and in the end the store and the kernels know of nobody.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use podwire_tests::{ours, podwire};

use crate::blocks::{ipam, is_ready, ready, start, DUAL};
use crate::stage::{Stage, Store};

const PODS: usize = 168;
/// So many of a node's pods are there at once.
const AT_ONCE: usize = 12;
/// How often each agent is killed.
const KILLS: usize = 4;

/// Pods come and go on a node. What a pod has is held by a folder in `held` for as long as it has it, and there can be one of a name only. An ADD that is
/// told to try again is tried again, as a runtime does.
fn script(stage: &Stage, number: u8) -> String {
    let (podwire, plugins, held) = (podwire(), ours(), stage.folder.join("held").display().to_string());
    format!(
        r#"
rest() {{ echo "$1 --plugin-dir {plugins} --conf-dir /run/cni-conf"; }}
come() {{
  ip netns add $1 || return 1
  for try in $(seq 30); do
    {podwire} cni add cbr0 $(rest $1) --json > /run/test/$1 2> /run/test/$1.err && break
    [ $try = 30 ] && {{ cat /run/test/$1.err >&2; return 1; }}
    sleep 0.2
  done
  for ip in $(grep -o '"address": "[^"]*' /run/test/$1 | sed 's/.*"//; s,/.*,,' | tr : _); do
    mkdir {held}/$ip || {{ echo "$1 on n{number} has $ip of somebody" >&2; return 1; }}
  done
}}
go() {{
  for ip in $(grep -o '"address": "[^"]*' /run/test/$1 | sed 's/.*"//; s,/.*,,' | tr : _); do rmdir {held}/$ip; done
  {podwire} cni del cbr0 $(rest $1) >/dev/null && ip netns delete $1
}}
for n in $(seq {PODS}); do
  come c$n || exit 1
  [ $n -gt {AT_ONCE} ] && {{ go c$((n - {AT_ONCE})) || exit 1; }}
done
for n in $(seq $(({PODS} - {AT_ONCE} + 1)) {PODS}); do go c$n || exit 1; done
"#
    )
}

#[test]
fn five_hundred_pods_come_and_go_while_agents_are_killed() {
    let mut stage = ready(Store::Etcd, [10, 10, 20], &DUAL, &[]);
    std::fs::create_dir_all(stage.folder.join("held")).expect("a folder");
    let before = handles(&stage);
    let scripts: Vec<_> = (1..=3u8)
        .map(|number| {
            let mut command = stage.node(number).command("sh");
            command.args(["-c", &script(&stage, number)]);
            command.spawn().expect("sh")
        })
        .collect();
    let over = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let threads: Vec<_> = scripts
            .into_iter()
            .map(|mut child| {
                let over = &over;
                scope.spawn(move || {
                    let status = child.wait().expect("its end");
                    over.fetch_add(1, Ordering::Relaxed);
                    status.success()
                })
            })
            .collect();
        // At other moments each time, for as long as pods come.
        for round in 0..KILLS * 3 {
            if over.load(Ordering::Relaxed) == 3 {
                break;
            }
            let number = (round % 3) as u8 + 1;
            std::thread::sleep(Duration::from_millis(300 + 70 * round as u64));
            stage.kill_agent(number);
            if round % 2 == 0 {
                // For a while there is none at all.
                std::thread::sleep(Duration::from_millis(400));
            }
            start(&mut stage, number, &[]);
        }
        assert!(threads.into_iter().all(|thread| thread.join().expect("a node")), "all came and went");
    });
    for number in 1..=3 {
        stage.wait_until("all is told", |stage| {
            let addresses = stage.status(number)["addresses"].clone();
            is_ready(stage, number) && addresses["untold"] == 0 && addresses["leases"] == 1
        });
        let links = stage.node(number).sh("ip -o link show type veth");
        assert_eq!(links.matches(": cali").count(), 1, "its first pod only: {links}");
        assert_eq!(stage.node(number).sh("ls /var/lib/podwire/addresses/released | wc -l").trim(), "0");
    }
    // Nobody is left in the store but the pods of before, the stock and the tunnels.
    stage.wait_until("the store knows of nobody", |stage| handles(stage) == before);
    let check = ipam(&stage, "check");
    assert!(check.contains("everything fits together"), "{check}");
    let endpoints = "get /calico/resources/v3/projectcalico.org/workloadendpoints/ --prefix --keys-only";
    stage.wait_until("the endpoints of the first pods only", |stage| {
        stage.etcdctl(endpoints).split_whitespace().count() == 3
    });
    assert_eq!(std::fs::read_dir(stage.folder.join("held")).expect("held").count(), 0);
    stage.assert_model_holds();
}

fn handles(stage: &Stage) -> Vec<String> {
    let said = stage.etcdctl("get /calico/ipam/v2/handle/ --prefix --keys-only");
    said.split_whitespace().map(str::to_owned).collect()
}
