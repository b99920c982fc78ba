//! BGP with real BIRDs: between the nodes, and to an outside router that learns the blocks and reaches pods.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use serde_json::{json, Value};

use crate::blocks::{ready, ready_behind, start, Pool, DUAL};
use crate::stage::{Stage, Store};

const BARE: [Pool<'_>; 1] = [("v4", "10.244.0.0/16", "")];

/// The config of the router's BIRD: it has a session with every node, and no other route to pods.
const TOP_OF_RACK: &str = r#"
router id 192.168.10.1;
log stderr all;
protocol device {}
protocol direct { ipv4; interface "lan*"; }
protocol kernel { ipv4 { export filter { if (source = RTS_BGP) then accept; reject; }; }; }
template bgp node { local as 64700; neighbor as 64512; multihop; graceful restart on; ipv4 { import all; export none; }; }
protocol bgp n1 from node { neighbor 192.168.10.11; }
protocol bgp n2 from node { neighbor 192.168.10.12; }
protocol bgp n3 from node { neighbor 192.168.20.13; }
"#;

/// A stage that stops its BIRDs when it is dropped: they outlive the agents that start them.
struct BgpStage(Stage);

impl Deref for BgpStage {
    type Target = Stage;

    fn deref(&self) -> &Stage {
        &self.0
    }
}

impl DerefMut for BgpStage {
    fn deref_mut(&mut self) -> &mut Stage {
        &mut self.0
    }
}

impl Drop for BgpStage {
    fn drop(&mut self) {
        let end = "for pid in /run/podwire/bird/bird.pid /run/tor/bird.pid; do [ ! -s $pid ] || kill -9 $(cat $pid); done";
        for number in 1..=3 {
            self.0.kill_agent(number);
            self.0.node(number).try_sh(end);
        }
        self.0.router.try_sh(end);
    }
}

fn bgp_stage(links: [u8; 3]) -> BgpStage {
    bgp_stage_with(links, &["--bgp"])
}

fn bgp_stage_with(links: [u8; 3], flags: &[&str]) -> BgpStage {
    BgpStage(ready(Store::Etcd, links, &BARE, flags))
}

/// Three nodes with BIRDs, and one at the router.
fn stage() -> BgpStage {
    let stage = bgp_stage([10, 10, 20]);
    put(
        &stage,
        "bgppeers",
        "tor10",
        &json!({"peerIP": "192.168.10.1", "asNumber": 64700, "nodeSelector": "all()"}),
    );
    start_router(&stage, TOP_OF_RACK);
    stage.wait_until("all sessions are up", |stage| (1..=3).all(|number| established(stage, number) == 3));
    stage
}

fn start_router(stage: &Stage, config: &str) {
    stage.router.write("/run/tor/bird.conf", config);
    stage.router.sh("bird -c /run/tor/bird.conf -s /run/tor/bird.ctl -P /run/tor/bird.pid");
}

/// Writes an object as calicoctl does.
fn put(stage: &Stage, plural: &str, name: &str, spec: &Value) {
    let object = json!({"apiVersion": "projectcalico.org/v3", "metadata": {"name": name}, "spec": spec});
    stage.etcdctl(&format!("put /calico/resources/v3/projectcalico.org/{plural}/{name} '{object}'"));
}

fn established(stage: &Stage, number: u8) -> usize {
    let status = stage.status(number);
    let sessions = status["bgpSessions"].as_object();
    sessions
        .into_iter()
        .flatten()
        .filter(|(_, state)| state.as_str().is_some_and(|it| it.starts_with("Established")))
        .count()
}

/// The state of a session of a node.
fn session(stage: &Stage, number: u8, name: &str) -> String {
    stage.status(number)["bgpSessions"][name].as_str().unwrap_or_default().to_owned()
}

fn bird_pid(stage: &Stage, number: u8) -> String {
    stage.node(number).sh("cat /run/podwire/bird/bird.pid").trim().to_owned()
}

/// The pod routes that the router learned.
fn learned(stage: &Stage) -> Vec<String> {
    let routes = stage.router.sh("ip route show proto bird | sed 's/ .*//' | sort");
    routes.lines().map(str::to_owned).collect()
}

/// Fails if the unit no longer grants the agent and its BIRD the capabilities that they need.
#[test]
fn the_agent_works_with_the_capabilities_of_its_systemd_unit_and_has_metrics() {
    let bounds = crate::rights_of("podwire-agent-calico.service");
    let wrapper = ["setpriv", &bounds, "--no-new-privs"];
    let stage = BgpStage(ready_behind(Store::Embedded, [10, 10, 20], &DUAL, &wrapper, &["--bgp"]));
    // One session in each family with each of the two other nodes.
    stage.wait_until("the sessions are up", |stage| (1..=3).all(|number| established(stage, number) == 4));
    stage.assert_model_holds();
    for line in [
        "podwire_agent_ready 1",
        "podwire_agent_leases 1",
        "podwire_agent_store_answers 1",
        "podwire_agent_unreadable_records 0",
        "podwire_agent_blocks 2",
        "podwire_agent_peers 2",
        "podwire_agent_unreachable_peers 0",
        "podwire_agent_problems 0",
    ] {
        stage.wait_until(line, |stage| stage.metrics(1).lines().any(|there| there == line));
    }
    stage.wait_until("all sessions are up in the metrics", |stage| {
        let metrics = stage.metrics(1);
        let is_session = |line: &&str| line.starts_with("podwire_agent_bgp_session_established{");
        let sessions: Vec<&str> = metrics.lines().filter(is_session).collect();
        sessions.len() == 4 && sessions.iter().all(|line| line.ends_with(" 1"))
    });
}

#[test]
fn nodes_and_an_outside_router_learn_blocks_and_reach_pods() {
    let mut stage = stage();
    stage.wait_until("a route for each node's block", |stage| learned(stage).len() == 3);
    assert!(learned(&stage).iter().all(|route| route.ends_with("/26")), "blocks, and no single pod");
    stage.assert_model_holds_in(1);
    for number in 1..=3 {
        let pod = stage.address(number, &format!("pod{number}"));
        stage.router.sh(&format!("ping -c 1 -W 5 {pod}"));
    }
    let own = stage.node(1).json("ip -j route show proto bird");
    assert_eq!(own.as_array().map(Vec::len), Some(2), "{own:#}");

    // The agent restarts a killed BIRD, and no packet is lost meanwhile.
    let killed = bird_pid(&stage, 1);
    let lost = stage.lost_while(3, 1, |stage| {
        stage.node(1).sh(&format!("kill -9 {killed}"));
        stage.wait_until("another BIRD", |stage| {
            stage.node(1).can("test -s /run/podwire/bird/bird.pid")
                && bird_pid(stage, 1) != killed
                && established(stage, 1) == 3
        });
    });
    assert!(lost.is_empty(), "graceful restart: {lost:?}");

    // The agent is killed and restarted; its BIRD keeps running.
    let pid = bird_pid(&stage, 1);
    stage.kill_agent(1);
    start(&mut stage, 1, &["--bgp"]);
    stage.wait_until("the agent sees its sessions", |stage| established(stage, 1) == 3);
    assert_eq!(bird_pid(&stage, 1), pid);

    // A node without an agent and BIRD: the router removes its routes.
    stage.kill_agent(3);
    let pid = bird_pid(&stage, 3);
    stage.node(3).sh(&format!("kill {pid}"));
    stage.wait_until("the router forgets it", |stage| learned(stage).len() == 2);
}

#[test]
fn filters_reflectors_and_mistakes() {
    let stage = bgp_stage([10, 10, 10]);
    stage.wait_until("the mesh", |stage| (1..=3).all(|number| established(stage, number) == 2));
    // n3 is the reflector, and there is no mesh.
    let name = "/calico/resources/v3/projectcalico.org/nodes/n3";
    let text = stage.etcdctl(&format!("get {name} --print-value-only"));
    let mut node: Value = serde_json::from_str(text.trim()).expect("the node");
    node["metadata"]["labels"]["reflector"] = "yes".into();
    node["spec"]["bgp"]["routeReflectorClusterID"] = "244.0.0.1".into();
    stage.etcdctl(&format!("put {name} '{node}'"));
    put(
        &stage,
        "bgppeers",
        "reflector",
        &json!({"nodeSelector": "all()", "peerSelector": "reflector == \"yes\""}),
    );
    put(&stage, "bgpconfigurations", "default", &json!({"nodeToNodeMeshEnabled": false, "asNumber": 64512}));
    stage.wait_until("one session, and two of the reflector", |stage| {
        (established(stage, 1), established(stage, 2), established(stage, 3)) == (1, 1, 2)
    });
    stage.wait_until("the reflector sends the routes of all nodes", |stage| {
        let routes = |number| stage.node(number).json("ip -j route show proto bird").as_array().map(Vec::len);
        (1..=3).all(|number| routes(number) == Some(2))
    });
    stage.assert_model_holds_in(1);

    // A peer with an unknown filter is ignored and reported; the others stay.
    put(&stage, "bgpfilters", "odd", &json!({"exportV4": [{"action": "Reject", "communities": {}}]}));
    put(&stage, "bgppeers", "odd", &json!({"peerIP": "192.168.10.1", "asNumber": 1, "filters": ["odd"]}));
    stage.wait_until("the ignored peer is reported", |stage| {
        stage.status(1)["problems"].to_string().contains("BGPPeer odd is ignored")
    });
    assert_eq!(established(&stage, 1), 1);
    std::thread::sleep(Duration::from_millis(200));
    stage.assert_model_holds_in(1);
}

/// The router requires a password: n1 has it, n2 has another one, n3 has none.
#[test]
fn sessions_need_the_right_password_and_a_missing_one_is_reported() {
    const PASSWORD: &str = "open, sesame; {1} #2";
    let stage = bgp_stage_with([10, 10, 20], &["--bgp", "--bgp-passwords", "/run/passwords"]);
    stage.node(1).write("/run/passwords/bgp/tor", PASSWORD);
    stage.node(2).write("/run/passwords/bgp/tor", "open, barley");
    let with_password = TOP_OF_RACK.replace("multihop;", &format!("multihop; password \"{PASSWORD}\";"));
    start_router(&stage, &with_password);
    let secret = |key: &str| json!({"secretKeyRef": {"name": "bgp", "key": key}});
    put(
        &stage,
        "bgppeers",
        "tor",
        &json!({"peerIP": "192.168.10.1", "asNumber": 64700, "nodeSelector": "all()", "password": secret("tor")}),
    );
    let tor = "peer_tor_192_168_10_1";
    let is_up = |stage: &Stage, number: u8| session(stage, number, tor).starts_with("Established");
    stage.wait_until("the node with the password has a session", |stage| {
        is_up(stage, 1) && learned(stage).len() == 1
    });
    let problem = |stage: &Stage, number: u8| stage.status(number)["problems"].to_string();
    stage.wait_until("the missing password is reported", |stage| {
        problem(stage, 3).contains("key tor of secret bgp")
    });
    assert_eq!(session(&stage, 3, tor), "", "no session without a password");
    // Each side retries every five seconds.
    std::thread::sleep(Duration::from_secs(6));
    let state = session(&stage, 2, tor);
    assert!(!state.is_empty() && !state.starts_with("Established"), "with a wrong password: {state:?}");
    assert_eq!(stage.node(1).sh("stat -c %a /run/podwire/bird/bird.conf").trim(), "600");
    assert!(!stage.status(1).to_string().contains("sesame"));

    // A corrected password takes effect at once. The mesh has a password too: nodes without it get no session.
    stage.node(2).write("/run/passwords/bgp/tor", &format!("{PASSWORD}\n"));
    for number in 1..=2 {
        stage.node(number).write("/run/passwords/bgp/mesh", "together");
    }
    put(&stage, "bgpconfigurations", "default", &json!({"nodeMeshPassword": secret("mesh")}));
    stage.wait_until("both have sessions with the router and each other", |stage| {
        is_up(stage, 2) && (1..=2).all(|number| established(stage, number) == 2)
    });
    stage.wait_until("the third node has no session", |stage| {
        problem(stage, 3).contains("key mesh of secret bgp") && established(stage, 3) == 0
    });
}
