//! Five hundred routed pods are attached and detached on three nodes while the agents are killed repeatedly. No address
//! is assigned twice or leaked. At the end neither the store nor the kernels have any of the pods.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use podwire_tests::{ours, podwire};
use serde_json::json;

use crate::blocks::{ipam, is_ready, ready, start, DUAL};
use crate::calico::Cluster;
use crate::stage::{Stage, Store};

/// The number of pods of each of the three nodes: five hundred in total. `make test` attaches fewer.
fn pods() -> usize {
    if podwire_tests::is_whole() {
        168
    } else {
        48
    }
}
/// The maximal number of attached pods of a node.
const AT_ONCE: usize = 12;
/// How often each agent is killed.
const KILLS: usize = 4;

/// The script of a node: attaches and detaches pods. Each address of an attached pod is a directory in `held`; creating
/// a directory that exists fails. An ADD that fails with "try again" is repeated, as a runtime does.
fn script(stage: &Stage, number: u8) -> String {
    let pods = pods();
    let (podwire, plugins, held) = (podwire(), ours(), stage.folder.join("held").display().to_string());
    format!(
        r#"
rest() {{ echo "$1 --plugin-dir {plugins} --conf-dir /run/cni-conf"; }}
attach() {{
  ip netns add $1 || return 1
  for try in $(seq 300); do
    {podwire} cni add cbr0 $(rest $1) --json > /run/test/$1 2> /run/test/$1.err && break
    [ $try = 300 ] && {{ cat /run/test/$1.err >&2; return 1; }}
    sleep 0.2
  done
  for ip in $(grep -o '"address": "[^"]*' /run/test/$1 | sed 's/.*"//; s,/.*,,' | tr : _); do
    mkdir {held}/$ip || {{ echo "$1 on n{number} has $ip of another pod" >&2; return 1; }}
  done
}}
detach() {{
  for ip in $(grep -o '"address": "[^"]*' /run/test/$1 | sed 's/.*"//; s,/.*,,' | tr : _); do rmdir {held}/$ip; done
  {podwire} cni del cbr0 $(rest $1) >/dev/null && ip netns delete $1
}}
for n in $(seq {pods}); do
  attach c$n || exit 1
  [ $n -gt {AT_ONCE} ] && {{ detach c$((n - {AT_ONCE})) || exit 1; }}
done
for n in $(seq $(({pods} - {AT_ONCE} + 1)) {pods}); do detach c$n || exit 1; done
"#
    )
}

/// Three nodes with agents, and the store of their blocks.
trait Scene {
    fn stage(&self) -> &Stage;
    fn kill(&mut self, number: u8);
    fn start(&mut self, number: u8);
    /// The handles that have addresses.
    fn handles(&self) -> Vec<String>;
    /// The number of published endpoints.
    fn endpoints(&self) -> usize;
    /// The output of `podwire ipam check`.
    fn check(&self) -> String;
}

struct InEtcd(Stage);

impl Scene for InEtcd {
    fn stage(&self) -> &Stage {
        &self.0
    }

    fn kill(&mut self, number: u8) {
        self.0.kill_agent(number);
    }

    fn start(&mut self, number: u8) {
        start(&mut self.0, number, &[]);
    }

    fn handles(&self) -> Vec<String> {
        self.0
            .etcdctl("get /calico/ipam/v2/handle/ --prefix --keys-only")
            .split_whitespace()
            .map(str::to_owned)
            .collect()
    }

    fn endpoints(&self) -> usize {
        let prefix = "/calico/resources/v3/projectcalico.org/workloadendpoints/";
        self.0.etcdctl(&format!("get {prefix} --prefix --keys-only")).split_whitespace().count()
    }

    fn check(&self) -> String {
        ipam(&self.0, "check")
    }
}

/// Records in Calico's own custom resources.
struct InKubernetes(Cluster);

impl Scene for InKubernetes {
    fn stage(&self) -> &Stage {
        &self.0.stage
    }

    fn kill(&mut self, number: u8) {
        self.0.stage.kill_agent(number);
    }

    fn start(&mut self, number: u8) {
        self.0.start(number, &["agent", "calico"], &["--healthz-port", "8081"]);
    }

    fn handles(&self) -> Vec<String> {
        self.0.records().handles.into_keys().collect()
    }

    fn endpoints(&self) -> usize {
        self.0.records().endpoints.len()
    }

    fn check(&self) -> String {
        self.0.ipam("check")
    }
}

#[test]
fn many_pods_are_attached_and_detached_while_agents_are_killed() {
    let scene = InEtcd(ready(Store::Etcd, [10, 10, 20], &DUAL, &[]));
    let scene = attach_and_detach(scene, 1);
    scene.stage().assert_model_holds();
}

#[test]
fn many_pods_are_attached_and_detached_on_an_api_server_while_agents_are_killed() {
    let Some(cluster) = Cluster::in_kubernetes() else { return };
    let mut scene = InKubernetes(cluster);
    for number in 1..=3 {
        let plugin = json!({
            "type": "calico", "nodename": format!("n{number}"), "datastore_type": "kubernetes",
            "ipam": {"type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true"},
        });
        let list = json!({"cniVersion": "1.0.0", "name": "cbr0", "plugins": [plugin]});
        scene.stage().node(number).write("/run/cni-conf/10-calico.conflist", &list.to_string());
        scene.start(number);
        scene.stage().wait_until("an agent with a warm pool", |stage| is_ready(stage, number));
    }
    attach_and_detach(scene, 0);
}

/// Runs the scripts while agents are killed. `stay` is the number of pods that each node had before.
fn attach_and_detach<S: Scene>(mut scene: S, stay: usize) -> S {
    std::fs::create_dir_all(scene.stage().folder.join("held")).expect("a folder");
    let is_settled = |stage: &Stage, number| {
        let addresses = stage.status(number)["addresses"].clone();
        is_ready(stage, number) && addresses["unsynced"] == 0 && addresses["leases"] == stay
    };
    let settled = |stage: &Stage| (1..=3).all(|number| is_settled(stage, number));
    scene.stage().wait_until("the first pods are synced", settled);
    // The tunnel addresses follow shortly after the warm pool: two for each node.
    scene.stage().wait_until("all tunnel addresses", |_| {
        scene.handles().iter().filter(|handle| handle.contains("-tunnel-addr-")).count() == 6
    });
    let before = scene.handles();
    let scripts: Vec<_> = (1..=3u8)
        .map(|number| {
            let mut command = scene.stage().node(number).command("sh");
            command.args(["-c", &script(scene.stage(), number)]);
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
        // Kill the agents at various moments while the scripts run.
        for round in 0..KILLS * 3 {
            if over.load(Ordering::Relaxed) == 3 {
                break;
            }
            let number = (round % 3) as u8 + 1;
            std::thread::sleep(Duration::from_millis(300 + 70 * round as u64));
            scene.kill(number);
            if round % 2 == 0 {
                // For some time the node has no agent.
                std::thread::sleep(Duration::from_millis(400));
            }
            scene.start(number);
        }
        assert!(
            threads.into_iter().all(|thread| thread.join().expect("a node")),
            "all pods were attached and detached"
        );
    });
    for number in 1..=3 {
        scene.stage().wait_until("all leases are synced", |stage| is_settled(stage, number));
        let links = scene.stage().node(number).sh("ip -o link show type veth");
        assert_eq!(links.matches(": cali").count(), stay, "only the first pods have links: {links}");
        scene.stage().wait_until("all pending releases are done", |stage| {
            stage.node(number).sh("ls /var/lib/podwire/addresses/released | wc -l").trim() == "0"
        });
    }
    // The store holds only the first pods, the warm pools and the tunnel addresses.
    scene.stage().wait_until("the store has no other pod", |_| scene.handles() == before);
    let check = scene.check();
    assert!(check.contains("no problems"), "{check}");
    scene.stage().wait_until("the store has only the first endpoints", |_| scene.endpoints() == 3 * stay);
    assert_eq!(std::fs::read_dir(scene.stage().folder.join("held")).expect("held").count(), 0);
    scene
}
