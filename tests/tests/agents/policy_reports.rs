//! What the agent reports about policies: dropped packets in the metrics and in the log, with the names of both pods;
//! metrics of the enforcement; selectors that match nothing.

use std::time::Instant;

use crate::policies::{
    add_all, is_kept_from, reaches, stage, stage_with, stage_without_agents, start, start_with, FOLDER,
};
use crate::stage::Stage;
use podwire_tests::podwire;

/// The log message of a dropped packet.
const DROPPED: &str = "packet dropped";
const ISOLATED: &str = "isolated by NetworkPolicy shop/db";
const NOT_ITS_OWN: &str = "sent with an address that is not the pod's own";

/// Opens a TCP connection from one pod to another, whether it succeeds or not.
fn connect(stage: &Stage, from: &str, to: &str, port: u16) {
    connect_to(stage, from, &stage.address(1, to), port);
}

/// The same to an address.
fn connect_to(stage: &Stage, from: &str, address: &str, port: u16) {
    let script = format!(
        "ip netns exec {from} python3 -c \"import socket; s = socket.socket(); s.settimeout(1); s.connect_ex(('{address}', {port}))\""
    );
    stage.node(1).sh(&script);
}

/// The value of a metric that has all of these labels.
pub fn metric(stage: &Stage, name: &str, labels: &[&str]) -> Option<u64> {
    let name = format!("podwire_agent_policy_{name}");
    let matches = |line: &&str| {
        line.split(['{', ' ']).next() == Some(name.as_str())
            && labels.iter().all(|label| line.contains(label))
    };
    let metrics = stage.metrics(1);
    metrics.lines().find(matches)?.rsplit(' ').next()?.parse().ok()
}

/// The number of dropped packets, by direction and reason.
pub fn dropped(stage: &Stage, direction: &str, reason: &str) -> Option<u64> {
    let labels = [format!("direction=\"{direction}\""), format!("reason=\"{reason}\"")];
    metric(stage, "dropped_packets_total", &labels.each_ref().map(String::as_str))
}

/// The number of dropped packets of a pod.
fn dropped_of(stage: &Stage, direction: &str, pod: &str) -> Option<u64> {
    let labels = [format!("direction=\"{direction}\""), format!("pod=\"{pod}\"")];
    metric(stage, "pod_dropped_packets_total", &labels.each_ref().map(String::as_str))
}

/// The number of log lines about dropped packets that contain all of these words.
fn logged(stage: &Stage, words: &[&str]) -> usize {
    let words: Vec<&str> = [DROPPED].iter().chain(words).copied().collect();
    stage.machine(1).agent.as_ref().expect("the agent").count(&words)
}

/// Waits for a log line of the agent that contains all of these words.
#[track_caller]
fn expect(stage: &mut Stage, words: &[&str]) -> String {
    stage.nodes[0].agent.as_mut().expect("the agent").expect(words)
}

#[test]
fn a_denied_connection_is_counted_and_logged_with_both_pods_and_the_policy() {
    let mut stage = stage();
    add_all(&stage);
    assert!(reaches(&stage, "web", "db"), "the policy allows it");
    connect(&stage, "web", "db", 5432);
    connect(&stage, "db", "other", 5432);
    assert_eq!(dropped(&stage, "ingress", ISOLATED), Some(0));
    assert_eq!(dropped_of(&stage, "ingress", "shop/db"), None);

    connect(&stage, "other", "db", 5432);
    let words = [DROPPED, ISOLATED, "from=shop/other to=shop/db protocol=TCP port=5432 direction=ingress"];
    expect(&mut stage, &words);
    let count = dropped(&stage, "ingress", ISOLATED).expect("a count");
    assert!(count >= 1, "{}", stage.metrics(1));
    assert_eq!(dropped_of(&stage, "ingress", "shop/db"), Some(count), "{}", stage.metrics(1));
    assert_eq!(
        logged(&stage, &["from=shop/web"]) + logged(&stage, &["from=shop/db"]),
        0,
        "packets that pass are not logged"
    );

    // An unknown peer is logged with its address, and an administrator's denial with the rule.
    let deny = "apiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {name: closed}\n\
                spec:\n  tier: Admin\n  priority: 1\n  subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: web}}}}\n  \
                egress: [{name: world, action: Deny, to: [{networks: [192.0.2.0/24]}]}]\n";
    stage.node(1).write(&format!("{FOLDER}/closed.yaml"), deny);
    stage.wait_until("the policy is known", |stage| metric(stage, "policies", &[]) == Some(2));
    stage.wait_until("the policy is enforced", |stage| {
        dropped(stage, "egress", "denied by ClusterNetworkPolicy closed egress[0] \\\"world\\\"").is_some()
    });
    stage.node(1).can("ip netns exec web ping -c 1 -W 1 192.0.2.7 > /dev/null");
    let rule = "denied by ClusterNetworkPolicy closed egress[0] \"world\"";
    expect(&mut stage, &[DROPPED, rule, "from=shop/web to=192.0.2.7 protocol=ICMP direction=egress"]);
    assert_eq!(dropped_of(&stage, "egress", "shop/web"), Some(1));
    // A new policy does not reset the counters.
    assert_eq!(dropped(&stage, "ingress", ISOLATED), Some(count));
}

#[test]
fn a_dropped_packet_to_a_service_is_logged_with_the_service() {
    let mut stage = stage_without_agents();
    stage.node(1).sh("mkdir -p /run/services");
    start_with(&mut stage, "flannel", &["--services", "files:/run/services"]);
    add_all(&stage);
    let db = stage.address(1, "db");
    let service = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: store, namespace: shop}}\nspec:\n  clusterIP: 10.96.0.1\n  \
         ports: [{{name: sql, port: 80}}]\n---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  \
         name: store\n  namespace: shop\n  labels: {{kubernetes.io/service-name: store}}\naddressType: IPv4\n\
         ports: [{{name: sql, port: 5432}}]\nendpoints: [{{addresses: [{db}]}}]\n"
    );
    stage.node(1).write("/run/services/store.yaml", &service);
    stage.wait_until("the Service is in the kernel", |stage| stage.status(1)["services"]["frontends"] == 1);
    connect_to(&stage, "other", "10.96.0.1", 80);
    let to_db = "from=shop/other to=shop/db protocol=TCP";
    let of_store = "port=5432 direction=ingress endpoint_of=shop/store:sql reason=";
    expect(&mut stage, &[DROPPED, ISOLATED, &format!("{to_db} {of_store}")]);
    // The command names the same endpoint.
    let program = podwire();
    let explain = |from: &str, to: &str, port: &str| {
        let said = stage.node(1).output(&[&program, "policy", "explain", from, to, port], &[]);
        (said.status, said.stdout + &said.stderr)
    };
    for (from, port, status, says) in [
        ("shop/other", "80", 1, format!("-> shop/db ({db}) TCP 5432, endpoint of shop/store:sql: deny")),
        ("shop/web", "sql", 0, format!("-> shop/db ({db}) TCP 5432, endpoint of shop/store:sql: allow")),
        ("shop/web", "81", 2, "Service shop/store has no endpoint for port 81 of its cluster IPs".into()),
    ] {
        let (found, text) = explain(from, "service:shop/store", port);
        assert!(found == status && text.contains(&says), "{from} {port}: {found} {text}");
    }
    // The Service does not have this port.
    connect(&stage, "other", "db", 5433);
    expect(&mut stage, &[DROPPED, ISOLATED, &format!("{to_db} port=5433 direction=ingress reason=")]);
}

#[test]
fn a_flood_is_counted_in_full_and_logged_in_few_lines() {
    let stage = stage();
    add_all(&stage);
    let address = stage.address(1, "db");
    let send = |ports: &str| {
        stage.node(1).sh(&format!(
            "ip netns exec other python3 -c \"import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for n in range(20000): s.sendto(b'!', ('{address}', {ports}))\""
        ));
    };
    send("53");
    stage.wait_until("the drop is logged", |stage| logged(stage, &["port=53 "]) == 1);
    let began = Instant::now();
    send("1000 + n");
    stage.wait_until("more drops are logged", |stage| logged(stage, &["protocol=UDP"]) > 1);
    let lines = logged(&stage, &[]);
    // At most twenty lines at once and ten per second, and the same line only once.
    let limit = 20 + 10 * (began.elapsed().as_secs() as usize + 1);
    assert!(lines <= 1 + limit, "{lines} lines, more than {limit}");
    assert_eq!(logged(&stage, &["port=53 "]), 1);
    let count = dropped(&stage, "ingress", ISOLATED).expect("a count");
    // A few datagrams may be lost before they reach the policies.
    assert!(count >= 39_000, "{count}");
}

#[test]
fn a_pod_that_spoofs_an_address_is_logged_by_name() {
    for (chain, device) in [("bridge", "bridge"), ("ptp", "veth")] {
        let mut stage = stage_with(chain);
        add_all(&stage);
        let (web, db) = (stage.address(1, "web"), stage.address(1, "db"));
        stage.node(1).sh(&format!("ip netns exec other ip address add {web}/32 dev eth0"));
        stage.node(1).can(&format!("ip netns exec other ping -c 2 -W 1 -I {web} {db} > /dev/null"));
        let source = format!("from=shop/other as {web}");
        expect(&mut stage, &[DROPPED, NOT_ITS_OWN, &source, "to=shop/db", "direction=egress"]);
        // Its ARP requests may still be dropped and counted.
        stage.wait_until("all dropped packets are of shop/other", |stage| {
            let count = dropped(stage, "egress", NOT_ITS_OWN);
            count >= Some(1) && dropped_of(stage, "egress", "shop/other") == count
        });
        assert_eq!(dropped_of(&stage, "egress", "shop/web"), None, "{device}: shop/web sent none of them");
    }
}

#[test]
fn metrics_show_how_policies_are_enforced() {
    let stage = stage();
    add_all(&stage);
    for (name, value) in [("enforced", 1), ("policies", 1), ("interfaces", 3), ("repairs_total", 0)] {
        stage.wait_until(name, |stage| metric(stage, name, &[]) == Some(value));
    }
    assert_eq!(metric(&stage, "failures_total", &[]), Some(0));
    for kind in ["chain", "rule", "set", "element"] {
        let label = format!("kind=\"{kind}\"");
        stage.wait_until(kind, |stage| metric(stage, "kernel_objects", &[&label]) > Some(0));
    }
    // A change takes milliseconds. Half a minute is enough on every machine.
    stage.wait_until("the duration of the last change is shown", |stage| {
        let metrics = stage.metrics(1);
        let name = "podwire_agent_policy_last_change_seconds ";
        let seconds = metrics.lines().find_map(|line| line.strip_prefix(name)?.parse::<f64>().ok());
        seconds.is_some_and(|seconds| seconds > 0.0 && seconds < 30.0)
    });
    stage.node(1).sh("nft flush chain inet podwire_policy ingress");
    stage.wait_until("the repair is counted", |stage| metric(stage, "repairs_total", &[]) == Some(1));
}

#[test]
fn with_another_nflog_listener_drops_are_counted_but_not_logged() {
    let mut stage = stage_without_agents();
    // Binds the same group until the test ends: NFULNL_MSG_CONFIG with NFULNL_CFG_CMD_BIND.
    let listen = "import socket, struct, sys, time\ns = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)\n\
                  body = struct.pack('=BB', 0, 0) + struct.pack('>H', 20557) + struct.pack('=HHB3x', 5, 1, 1)\n\
                  s.send(struct.pack('=IHHII', 16 + len(body), 0x401, 5, 1, 0) + body)\ns.recv(999)\n\
                  open('/run/test/listens', 'w').write('!')\nsys.stdin.read()\n";
    stage.node(1).write("/run/test/listen.py", listen);
    let mut command = stage.node(1).command("python3");
    command.arg("/run/test/listen.py").stdin(std::process::Stdio::piped());
    let mut listener = command.spawn().expect("python3");
    stage.wait_until("the other listener is bound", |stage| stage.node(1).can("test -s /run/test/listens"));
    start(&mut stage, "flannel");
    expect(&mut stage, &["dropped packets are counted but not logged", "20557"]);
    add_all(&stage);
    assert!(is_kept_from(&stage, "other", "db"), "the policy does not allow it");
    assert!(dropped(&stage, "ingress", ISOLATED) >= Some(1));
    assert_eq!(logged(&stage, &[]), 0);
    listener.kill().expect("kill the listener");
    listener.wait().expect("wait for the listener");
}

#[test]
fn selectors_without_a_match_are_reported_until_they_match() {
    let stage = stage();
    let unmatched = |stage: &Stage| {
        let policies = &stage.status(1)["policies"];
        let selectors = &policies["unmatchedSelectors"];
        (selectors["count"].as_u64(), selectors["first"].to_string())
    };
    add_all(&stage);
    assert_eq!(unmatched(&stage), (Some(0), "[]".into()));
    // Policies with typing errors: in the pod selector, and in a peer's selector.
    let policy = |name: &str, app: &str, from: &str| {
        format!(
            "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: {name}, namespace: shop}}\nspec:\n  \
             podSelector: {{matchLabels: {{app: {app}}}}}\n  ingress:\n  - from: [{{podSelector: {{matchLabels: {{app: {from}}}}}}}]\n\
             ---\n"
        )
    };
    let both = policy("one", "bd", "web") + &policy("two", "db", "wbe");
    stage.node(1).write(&format!("{FOLDER}/typos.yaml"), &both);
    stage.wait_until("both are reported", |stage| unmatched(stage).0 == Some(2));
    let first = unmatched(&stage).1;
    assert!(first.contains("NetworkPolicy shop/one: spec: the policy selects no pod"), "{first}");
    assert!(first.contains("NetworkPolicy shop/two: spec.ingress[0]:") && first.contains("wbe"), "{first}");
    assert_eq!(metric(&stage, "unmatched_selectors", &[]), Some(2));
    stage.node(1).write(&format!("{FOLDER}/typos.yaml"), &policy("one", "db", "web"));
    stage.wait_until("nothing is reported any more", |stage| unmatched(stage).0 == Some(0));
}
