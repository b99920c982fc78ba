//! A plugin can be killed at any moment: by the kernel without memory, by an operator, by a runtime after a timeout.
//! These tests kill it on entry to each system call that changes something. A DEL, or a GC alone, must then leave
//! nothing of the pod.

use podwire_tests::strace::{self, Operation, Traced};
use podwire_tests::{assert_same, is_whole, ours, podwire, sample, Chain, Invocation, Node, Output, Pod};
use serde_json::{json, Value};

fn bridge() -> Value {
    json!({"type": "bridge", "bridge": "br0", "isDefaultGateway": true, "ipMasq": true, "macspoofchk": true,
        "hairpinMode": true, "ipam": {"type": "host-local", "ranges": [
            [{"subnet": "10.7.0.0/16"}], [{"subnet": "fd07::/64"}]]}})
}

fn ptp() -> Value {
    json!({"type": "ptp", "ipMasq": true, "ipam": {"type": "host-local", "ranges": [
        [{"subnet": "10.8.0.0/16"}], [{"subnet": "fd08::/64"}]]}})
}

fn calico() -> Value {
    json!({"type": "calico", "mtu": 1400, "ipam": {"type": "host-local", "ranges": [
        [{"subnet": "10.9.0.0/16"}], [{"subnet": "fd09::/64"}]]}})
}

fn macvlan() -> Value {
    json!({"type": "macvlan", "master": "uplink", "ipam": {"type": "host-local", "subnet": "10.5.0.0/16"}})
}

fn flannel() -> Value {
    json!({"type": "flannel", "subnetFile": SUBNET_FILE, "delegate": {"type": "ptp"}})
}

const SUBNET_FILE: &str = "/run/test/subnet.env";
/// The file that flanneld writes.
const SUBNET: &str =
    "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.0.1/16\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n";

fn host_device() -> Value {
    json!({"type": "host-device", "device": "hostdev0", "ipam": {"type": "host-local", "ranges": [
        [{"subnet": "10.5.0.0/16"}], [{"subnet": "fd05::/64"}]]}})
}

fn tap() -> Value {
    json!({"type": "tap", "mtu": 1400, "owner": 1000, "ipam": {"type": "host-local", "ranges": [
        [{"subnet": "10.6.0.0/16"}], [{"subnet": "fd06::/64"}]]}})
}

/// The plugins after bridge in a chain of five.
fn later() -> [Value; 4] {
    [
        json!({"type": "portmap", "capabilities": {"portMappings": true}, "runtimeConfig": {"portMappings": [
            {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
            {"hostPort": 5353, "containerPort": 53, "protocol": "udp"}]}}),
        json!({"type": "bandwidth", "ingressRate": 8_000_000, "ingressBurst": 800_000,
            "egressRate": 8_000_000, "egressBurst": 800_000}),
        json!({"type": "tuning", "sysctl": {"net.core.somaxconn": "4000"}, "mtu": 1400}),
        json!({"type": "firewall", "ingressPolicy": "same-bridge"}),
    ]
}

/// A network on a node where one of its pods was attached and detached, so that what stays by design exists.
struct Scene {
    node: Node,
    chain: Chain,
    clean: String,
    /// The state of a pod without attachments.
    empty: String,
}

impl Scene {
    fn of(plugins: &[Value]) -> Scene {
        let (node, chain) = (Node::new(), Chain::new(&ours(), "net", plugins));
        node.create_uplink();
        node.write(SUBNET_FILE, SUBNET);
        if plugins.iter().any(|config| config["type"] == "host-device") {
            node.sh("ip link add hostdev0 type veth peer name hostdev1 && ip link set hostdev0 up");
        }
        let first = node.pod("first");
        let empty = node.inside(&first);
        let result = chain.add(&node, &first);
        chain.del(&node, &first, Some(&result));
        node.remove(&first);
        let clean = node.leftovers();
        Scene { node, chain, clean, empty }
    }

    fn call(&self, verb: &str, plugin: usize, pod: &Pod, prev: Option<&Value>) -> Invocation<'_> {
        let call = Invocation::new(&self.node, &self.chain.path, verb, pod, &self.chain.config(plugin));
        match prev {
            Some(result) => call.prev(result),
            None => call,
        }
    }

    /// Runs ADD of the plugins before this one, and returns their result.
    fn add_before(&self, plugin: usize, pod: &Pod) -> Option<Value> {
        let before = Chain { plugins: self.chain.plugins[..plugin].to_vec(), ..self.chain.clone() };
        (plugin > 0).then(|| before.add(&self.node, pod))
    }

    /// The operations of a plugin's ADD.
    fn operations_of_add(&self, plugin: usize) -> Vec<Operation> {
        shortest(&format!("ADD of {}", self.chain.plugins[plugin]["type"]), || {
            let pod = self.node.pod("traced");
            let prev = self.add_before(plugin, &pod);
            let call = self.call("ADD", plugin, &pod, prev.as_ref());
            let (all, output) = strace::operations(&self.node, &call);
            output.result();
            self.chain.del(&self.node, &pod, None);
            self.node.remove(&pod);
            all
        })
    }

    /// The operations of a plugin's DEL, after the DEL of the plugins behind it.
    fn operations_of_del(&self, plugin: usize) -> Vec<Operation> {
        shortest(&format!("DEL of {}", self.chain.plugins[plugin]["type"]), || {
            let pod = self.node.pod("traced");
            let result = self.chain.add(&self.node, &pod);
            self.del_behind(plugin, &pod, &result);
            let call = self.call("DEL", plugin, &pod, Some(&result));
            let (all, output) = strace::operations(&self.node, &call);
            output.result();
            self.chain.del(&self.node, &pod, Some(&result));
            self.node.remove(&pod);
            all
        })
    }

    fn del_behind(&self, plugin: usize, pod: &Pod, result: &Value) {
        for later in (plugin + 1..self.chain.plugins.len()).rev() {
            self.call("DEL", later, pod, Some(result)).run().result();
        }
    }

    fn assert_clean(&self, pod: Option<&Pod>, context: &str) {
        assert_same(&self.clean, &self.node.leftovers(), &format!("on the node, {context}"));
        if let Some(pod) = pod {
            assert_same(&self.empty, &self.node.inside(pod), &format!("in the pod, {context}"));
        }
    }
}

/// `make test` kills a plugin at every n-th operation only.
const EVERY: usize = 12;

/// The operations of the shortest of three runs; with `make test` every n-th of them. A write to an IPv6 sysctl that
/// finds the kernel's lock taken is restarted until the lock is free, up to a thousand times on a busy machine, and
/// strace lists each attempt.
fn shortest(sweep: &str, trace: impl Fn() -> Vec<Operation>) -> Vec<Operation> {
    let all = (0..3).map(|_| trace()).min_by_key(Vec::len).unwrap_or_default();
    sample(sweep, all, EVERY)
}

/// What the runtime does after a plugin was killed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum After {
    /// DEL as libcni sends it: an ADD that did not end has no result.
    Del,
    /// DEL with the result of the previous plugins.
    DelWithResult,
    /// No DEL; only a later GC.
    Gc,
}

/// Kills every plugin's ADD at each operation.
fn kill_adds(plugins: &[Value], after: After) {
    let mut scene = Scene::of(plugins);
    if after == After::Gc {
        // Without any pod, GC also removes what all pods of a network share.
        scene.chain.gc(&scene.node, &[]);
        scene.clean = scene.node.leftovers();
    }
    for (plugin, config) in plugins.iter().enumerate() {
        let (operations, kind) = (scene.operations_of_add(plugin), &config["type"]);
        let mut survived = 0;
        for (n, operation) in operations.iter().enumerate() {
            let pod = scene.node.pod(&format!("p{plugin}-{n}"));
            let prev = scene.add_before(plugin, &pod);
            let (killed, output) =
                strace::killed_at(&scene.call("ADD", plugin, &pod, prev.as_ref()), operation);
            // Waiting for an event can take one call more or less.
            survived += usize::from(!killed);
            let context = format!("after {after:?} of a pod whose {kind} died in {operation}");
            assert!(killed || output.status == 0, "{context}: {}{}", output.stdout, output.stderr);
            match after {
                After::Del => scene.chain.del(&scene.node, &pod, None),
                After::DelWithResult => scene.chain.del(&scene.node, &pod, prev.as_ref()),
                After::Gc => scene.chain.gc(&scene.node, &[]),
            }
            scene.assert_clean((after != After::Gc).then_some(&pod), &context);
            scene.node.remove(&pod);
        }
        assert_few(survived, operations.len(), kind);
    }
}

/// Later runs make nearly the same operations as the traced one, so nearly every kill must hit. A sample of a few
/// operations may miss more.
fn assert_few(survived: usize, all: usize, who: &Value) {
    println!("{who} was killed at {} of {all} operations", all - survived);
    let tolerated = if is_whole() { all / 5 } else { all.div_ceil(2) };
    assert!(survived <= tolerated, "{who} survived {survived} of {all} operations");
}

/// Kills every plugin's DEL at each operation. The next DEL completes it.
fn kill_dels(plugins: &[Value]) {
    let scene = Scene::of(plugins);
    for (plugin, config) in plugins.iter().enumerate() {
        let (operations, kind) = (scene.operations_of_del(plugin), &config["type"]);
        let mut survived = 0;
        for (n, operation) in operations.iter().enumerate() {
            let pod = scene.node.pod(&format!("p{plugin}-{n}"));
            let result = scene.chain.add(&scene.node, &pod);
            scene.del_behind(plugin, &pod, &result);
            let (killed, _) = strace::killed_at(&scene.call("DEL", plugin, &pod, Some(&result)), operation);
            survived += usize::from(!killed);
            // In every other run the runtime has lost the result.
            scene.chain.del(&scene.node, &pod, Some(&result).filter(|_| n.is_multiple_of(2)));
            let context = format!("after a DEL by {kind} that died in {operation}");
            scene.assert_clean(Some(&pod), &context);
            scene.node.remove(&pod);
        }
        assert_few(survived, operations.len(), kind);
    }
}

fn five() -> Vec<Value> {
    [bridge()].into_iter().chain(later()).collect()
}

#[test]
fn a_bridged_pod_whose_add_was_killed_is_gone_after_del() {
    kill_adds(&[bridge()], After::Del);
}

#[test]
fn a_bridged_pod_whose_add_was_killed_is_gone_after_gc() {
    kill_adds(&[bridge()], After::Gc);
}

#[test]
fn a_routed_pod_whose_add_was_killed_is_gone_after_del() {
    kill_adds(&[ptp()], After::Del);
}

#[test]
fn a_routed_pod_whose_add_was_killed_is_gone_after_gc() {
    kill_adds(&[ptp()], After::Gc);
}

#[test]
fn a_pod_of_calicos_whose_add_was_killed_is_gone_after_del() {
    kill_adds(&[calico()], After::Del);
}

#[test]
fn a_pod_of_calicos_whose_add_was_killed_is_gone_after_gc() {
    kill_adds(&[calico()], After::Gc);
}

#[test]
fn a_pod_of_calicos_whose_del_was_killed_is_gone_after_the_next() {
    kill_dels(&[calico()]);
}

#[test]
fn a_macvlan_pod_whose_add_was_killed_is_gone_after_del() {
    kill_adds(&[macvlan()], After::Del);
}

#[test]
fn a_macvlan_pod_whose_add_was_killed_is_gone_after_gc() {
    kill_adds(&[macvlan()], After::Gc);
}

#[test]
fn a_macvlan_pod_whose_del_was_killed_is_gone_after_the_next() {
    kill_dels(&[macvlan()]);
}

#[test]
fn a_pod_of_flannels_whose_add_was_killed_is_gone_after_del() {
    kill_adds(&[flannel()], After::Del);
}

#[test]
fn a_pod_of_flannels_whose_add_was_killed_is_gone_after_gc() {
    kill_adds(&[flannel()], After::Gc);
}

#[test]
fn a_pod_of_flannels_whose_del_was_killed_is_gone_after_the_next() {
    kill_dels(&[flannel()]);
}

#[test]
fn a_pod_of_five_plugins_one_of_which_was_killed_is_gone_after_del() {
    kill_adds(&five(), After::Del);
}

#[test]
fn a_pod_of_five_plugins_one_of_which_was_killed_is_gone_after_del_with_the_last_result() {
    kill_adds(&five(), After::DelWithResult);
}

#[test]
fn a_pod_of_five_plugins_one_of_which_was_killed_is_gone_after_gc() {
    kill_adds(&five(), After::Gc);
}

#[test]
fn a_pod_whose_sbr_was_killed_is_gone_after_del() {
    kill_adds(&[ptp(), json!({"type": "sbr"})], After::Del);
}

#[test]
fn a_host_device_whose_add_was_killed_is_back_after_del() {
    kill_adds(&[host_device()], After::Del);
}

#[test]
fn a_device_whose_return_was_killed_is_home_after_the_next_del() {
    kill_dels(&[host_device()]);
}

#[test]
fn a_tap_device_whose_add_or_del_was_killed_is_gone_after_del() {
    kill_adds(&[tap()], After::Del);
    kill_dels(&[tap()]);
}

#[test]
fn a_routed_pod_whose_del_was_killed_is_gone_after_the_next() {
    kill_dels(&[ptp(), json!({"type": "sbr"})]);
}

#[test]
fn a_pod_of_five_plugins_whose_del_was_killed_is_gone_after_the_next() {
    kill_dels(&five());
}

/// A detached child deletes a link. It may be killed too.
#[test]
fn a_pod_whose_deleting_child_was_killed_is_gone_after_the_next_del() {
    let scene = Scene::of(&[bridge()]);
    // Calls that only the child makes: before it sends the deletion, and after it.
    for (call, nth) in
        [("setsid", 1), ("close_range", 1), ("close_range", 2), ("membarrier", 1), ("membarrier", 2)]
    {
        let pod = scene.node.pod(&format!("p-{call}-{nth}").replace('_', "-"));
        let result = scene.chain.add(&scene.node, &pod);
        let output = strace::killed_child_at(&scene.call("DEL", 0, &pod, Some(&result)), call, nth);
        let context = format!("after {call} number {nth} of the child: {}{}", output.stdout, output.stderr);
        assert!(matches!(output.status, 0 | 1), "{context}: {}", output.status);
        scene.chain.del(&scene.node, &pod, Some(&result));
        scene.assert_clean(Some(&pod), &context);
        scene.node.remove(&pod);
    }
}

/// The first pod of a node makes the plugins create more objects, so there are more operations to kill them at.
#[test]
fn the_first_pod_of_a_node_may_be_killed_too() {
    let without_bridge = |node: &Node| {
        let all = node.leftovers();
        all.lines()
            .filter(|line| *line != "link br0 bridge")
            .map(|line| format!("{line}\n"))
            .collect::<String>()
    };
    let chain = Chain::new(&ours(), "net", &[bridge()]);
    let first = |node: &Node| (node.pod("first"), without_bridge(node));
    let (_, clean) = first(&Node::new());
    let operations = shortest("first ADD of a node", || {
        let node = Node::new();
        let (pod, _) = first(&node);
        let call = Invocation::new(&node, &chain.path, "ADD", &pod, &chain.config(0));
        strace::operations(&node, &call).0
    });
    let mut survived = 0;
    for operation in &operations {
        let node = Node::new();
        let (pod, _) = first(&node);
        let call = Invocation::new(&node, &chain.path, "ADD", &pod, &chain.config(0));
        survived += usize::from(!strace::killed_at(&call, operation).0);
        chain.del(&node, &pod, None);
        assert_same(
            &clean,
            &without_bridge(&node),
            &format!("after the first ADD of a node died in {operation}"),
        );
        // The node can serve the next pod.
        let next = node.pod("next");
        let result = chain.add(&node, &next);
        chain.check(&node, &next, &result).unwrap_or_else(|failed| panic!("{operation}: {}", failed.stdout));
        chain.del(&node, &next, Some(&result));
        assert_same(&clean, &without_bridge(&node), &format!("after the pod that came after {operation}"));
    }
    assert_few(survived, operations.len(), &json!("the first ADD of a node"));
}

/// Each operation fails once, instead of a kill. ADD reports the failure and undoes its work, or does not need the
/// operation.
fn fail_adds(plugins: &[Value]) {
    let scene = Scene::of(plugins);
    for plugin in 0..plugins.len() {
        let operations = scene.operations_of_add(plugin);
        for (n, operation) in operations.iter().filter(|operation| !must_not_fail(operation)).enumerate() {
            let pod = scene.node.pod(&format!("p{plugin}-{n}"));
            let prev = scene.add_before(plugin, &pod);
            let before = scene.node.state(&pod);
            let output = strace::failed_at(&scene.call("ADD", plugin, &pod, prev.as_ref()), operation);
            let context = format!("after the failure of {operation}: {}{}", output.stdout, output.stderr);
            // This run wrote one time less than the traced one: the failed write is the one of the result, or the last
            // one of the process.
            let is_result = output.stderr.starts_with("write the result");
            if output.status != 0 && !is_result {
                let (_, text) = output.error();
                assert!(!text.is_empty(), "{context}");
                assert_same(&before, &scene.node.state(&pod), &context);
            }
            scene.chain.del(&scene.node, &pod, None);
            scene.assert_clean(Some(&pod), &context);
            scene.node.remove(&pod);
        }
    }
}

/// The write of the result: the plugin has no way to report a failure, and the runtime sends DEL. The return from a
/// pod's namespace (every second setns): a plugin that cannot return must not continue. A lock: only its holder may
/// remove its file, so the file is left to the next call or to GC.
fn must_not_fail(operation: &Operation) -> bool {
    let goes_home = operation.call == "setns" && operation.nth.is_multiple_of(2);
    operation.line.starts_with("write(1,") || goes_home || operation.call == "flock"
}

#[test]
fn a_failed_add_of_bridge_undoes_everything() {
    fail_adds(&[bridge()]);
}

#[test]
fn a_failed_add_of_flannel_undoes_everything() {
    fail_adds(&[flannel()]);
}

#[test]
fn a_failed_add_of_ptp_and_sbr_undoes_everything() {
    fail_adds(&[ptp(), json!({"type": "sbr"})]);
}

#[test]
fn a_failed_add_of_calico_undoes_everything() {
    fail_adds(&[calico()]);
}

#[test]
fn a_failed_add_of_macvlan_undoes_everything() {
    fail_adds(&[macvlan()]);
}

#[test]
fn a_failed_add_of_host_device_undoes_everything() {
    fail_adds(&[host_device()]);
}

#[test]
fn a_failed_add_of_tap_undoes_everything() {
    fail_adds(&[tap()]);
}

#[test]
fn a_failed_add_of_five_plugins_undoes_everything() {
    fail_adds(&five());
}

/// `podwire cni` as the runtime, with all plugins in its own process.
struct Runtime<'a> {
    node: &'a Node,
    words: Vec<String>,
}

impl Runtime<'_> {
    fn new<'a>(node: &'a Node, words: &str) -> Runtime<'a> {
        Runtime { node, words: words.split(' ').map(str::to_owned).collect() }
    }

    fn run(&self) {
        let output = self.behind(&[]);
        assert_eq!(output.status, 0, "{}: {}{}", self.words.join(" "), output.stdout, output.stderr);
    }
}

impl Traced for Runtime<'_> {
    fn behind(&self, wrapper: &[&str]) -> Output {
        let tool = podwire();
        let mut words: Vec<&str> = wrapper.to_vec();
        words.push(&tool);
        words.extend(self.words.iter().map(String::as_str));
        self.node.output(&words, &[("CNI_PATH", &ours()), ("NETCONFPATH", "/run/test/net.d")])
    }
}

fn scene_of_runtime(repair: impl Fn(&Node, &Pod)) -> (Node, String) {
    let node = Node::new();
    let mut plugins = five();
    plugins[1].as_object_mut().expect("an object").remove("runtimeConfig");
    let list = json!({"cniVersion": "1.1.0", "name": "net", "plugins": plugins});
    node.write("/run/test/net.d/10-net.conflist", &list.to_string());
    let first = node.pod("first");
    Runtime::new(&node, &format!("cni add net {} --publish 8080:80 --publish 5353:53/udp", first.name)).run();
    repair(&node, &first);
    node.remove(&first);
    let clean = node.leftovers();
    (node, clean)
}

fn kill_runtime(repair: impl Fn(&Node, &Pod)) {
    let (node, clean) = scene_of_runtime(&repair);
    let add = |pod: &Pod| {
        Runtime::new(&node, &format!("cni add net {} --publish 8080:80 --publish 5353:53/udp", pod.name))
    };
    let pod = node.pod("traced");
    let (operations, output) = strace::operations(&node, &add(&pod));
    assert_eq!(output.status, 0, "{}{}", output.stdout, output.stderr);
    Runtime::new(&node, "cni del net traced").run();
    let operations = sample("podwire cni add", operations, EVERY);
    let mut survived = 0;
    for (n, operation) in operations.iter().enumerate() {
        let pod = node.pod(&format!("p{n}"));
        survived += usize::from(!strace::killed_at(&add(&pod), operation).0);
        repair(&node, &pod);
        assert_same(&clean, &node.leftovers(), &format!("after a runtime that died in {operation}"));
        node.remove(&pod);
    }
    assert_few(survived, operations.len(), &json!("podwire cni add"));
}

#[test]
fn a_pod_whose_runtime_was_killed_is_gone_after_del() {
    kill_runtime(|node, pod| Runtime::new(node, &format!("cni del net {}", pod.name)).run());
}

#[test]
fn a_pod_whose_runtime_was_killed_is_gone_after_gc() {
    kill_runtime(|node, _| Runtime::new(node, "cni gc net --all").run());
}
