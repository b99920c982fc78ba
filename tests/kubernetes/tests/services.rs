//! Services by the agents, in place of kube-proxy: the move while a connection stands, every kind of Service from pods,
//! nodes and a host outside, the cluster's DNS, changing endpoints, and the health checks of load balancers.

use std::collections::BTreeSet;

use podwire_kubernetes_tests::chart::rendered;
use podwire_kubernetes_tests::services::{client, dns, servers, service, Client, DNS};
use podwire_kubernetes_tests::web::kernel;
use podwire_kubernetes_tests::{Cluster, Machine, Ranges};
use serde_json::{json, Value};

/// Enough requests that each of two servers answers one: it is missed with a probability of 1/16,000,000.
const MANY: usize = 24;
/// An address of nobody, which the host outside routes to a node.
const EXTERNAL: &str = "198.51.100.7";
const BALANCED: &str = "198.51.100.8";

#[test]
fn services_move_from_kube_proxy_to_the_agents_and_work() {
    let before = kernel();
    let cluster = Cluster::new(Ranges::Podwire);
    let mut machines = vec![cluster.boot("n1", 11), cluster.boot("n2", 12)];
    cluster.api.apply(&chart("false"));
    for machine in &machines {
        cluster.wait(&format!("{} takes pods", machine.name), || {
            cluster.api.takes_pods(&machine.name).then_some(())
        });
    }
    cluster.api.apply(&[
        servers(2),
        client("n1"),
        client("n2"),
        service("plain", &json!({"clusterIP": "10.96.0.80"})),
    ]);
    cluster.api.apply(&dns());
    let containers = ["n1", "n2"].map(|node| running(&cluster, &format!("client-{node}")));

    moves_while_a_connection_stands(&cluster, &mut machines, &containers[0]);

    let [n1, n2] = &machines[..] else { unreachable!("two machines") };
    let site = Site {
        cluster: &cluster,
        pods: [Client::Pod(n1, &containers[0]), Client::Pod(n2, &containers[1])],
        nodes: [Client::Process(n1.stage()), Client::Process(n2.stage())],
        outside: Client::Process(cluster.outside()),
    };
    site.cluster_ips();
    site.node_ports_and_external_addresses();
    site.local_traffic();
    site.affinity();
    site.names();
    site.policies();
    site.endpoints_come_and_go();

    drop(machines);
    drop(cluster);
    assert_eq!(kernel(), before, "the kernel of the machine that runs the test");
}

/// The chart with Services turned on or off.
fn chart(services: &str) -> Vec<Value> {
    rendered(&[
        "apiServer.host=192.168.99.1",
        "apiServer.port=6443",
        &format!("agent.services={services}"),
        "services.cleanupKubeProxy=true",
    ])
}

/// The container of a pod that runs.
fn running(cluster: &Cluster, name: &str) -> String {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}});
    cluster.wait(&format!("{name} runs"), || {
        let found = cluster.api.find(&pod)?;
        let container = &found["status"]["containerStatuses"][0];
        container["state"]["running"]
            .is_object()
            .then(|| container["containerID"].as_str().map(String::from))?
    })
}

fn moves_while_a_connection_stands(cluster: &Cluster, machines: &mut [Machine], container: &str) {
    let pod = Client::Pod(&machines[0], container);
    cluster.wait("kube-proxy leads to a server", || pod.ask("10.96.0.80:80"));
    // The first program keeps the pipe open. Neither keeps the output of the script.
    let begin = "mkfifo /tmp/in && (sleep 1000000 >/tmp/in 2>/dev/null & nc 10.96.0.80 9000 </tmp/in >/tmp/out 2>&1 &)";
    assert!(pod.run(begin).is_some());
    let echo = |word: &str| {
        assert!(pod.run(&format!("echo {word} >/tmp/in")).is_some());
        cluster.wait(&format!("the connection echoes {word}"), || pod.run(&format!("grep {word} /tmp/out")));
    };
    echo("by-kube-proxy");
    // An agent refuses to serve Services beside kube-proxy, so kube-proxy goes first. Its rules stay.
    for machine in machines.iter_mut() {
        machine.stop_proxy();
    }
    cluster.api.apply(&chart("true"));
    let machines = &*machines;
    for machine in machines {
        let has_services = || (machine.agent_status()["services"]["synced"] == true).then_some(());
        cluster.wait(&format!("the agent of {} serves Services", machine.name), has_services);
        let has_no_leftovers =
            || (!machine.stage().sh("nft list tables").contains("kube-proxy")).then_some(());
        cluster.wait(&format!("kube-proxy's tables are gone on {}", machine.name), has_no_leftovers);
    }
    let pod = Client::Pod(&machines[0], container);
    assert!(pod.run("echo by-the-agent >/tmp/in").is_some());
    cluster.wait("the connection still echoes", || pod.run("grep by-the-agent /tmp/out"));
}

struct Site<'a> {
    cluster: &'a Cluster,
    pods: [Client<'a>; 2],
    nodes: [Client<'a>; 2],
    outside: Client<'a>,
}

impl Site<'_> {
    /// Applies a Service.
    fn apply(&self, name: &str, spec: &Value) {
        self.cluster.api.apply(&[service(name, spec)]);
    }

    /// The servers that answer many requests, and the clients' addresses that they saw.
    fn answers(&self, client: Client<'_>, target: &str) -> [BTreeSet<String>; 2] {
        self.cluster.wait(&format!("an answer of {target}"), || client.ask(target));
        let answers =
            (0..MANY).map(|_| client.ask(target).unwrap_or_else(|| panic!("no answer of {target}")));
        let (servers, sources): (BTreeSet<_>, BTreeSet<_>) = answers.unzip();
        [servers, sources]
    }

    fn cluster_ips(&self) {
        for client in [&self.pods[..], &self.nodes[..]].concat() {
            assert_eq!(self.answers(client, "10.96.0.80:80")[0].len(), 2, "both servers");
            assert!(client.is_refused("10.96.0.80:81"), "a port that the Service does not have");
        }
        for pod in self.pods {
            let own = pod.run("hostname -i").expect("its address");
            assert_eq!(self.answers(pod, "10.96.0.80:80")[1], BTreeSet::from([own.trim().to_owned()]));
        }
        self.cluster
            .wait("the API server by its Service", || self.pods[0].run("echo | timeout 5 nc 10.96.0.1 443"));
        self.cluster.api.apply(&[json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "empty", "namespace": "default"},
            "spec": {"clusterIP": "10.96.0.81", "ports": [{"port": 80}], "selector": {"app": "nobody"}}})]);
        self.cluster.wait("a Service without endpoints refuses", || {
            (self.pods[0].is_refused("10.96.0.81:80") && self.nodes[0].is_refused("10.96.0.81:80"))
                .then_some(())
        });
    }

    fn node_ports_and_external_addresses(&self) {
        let port = json!([{"name": "web", "port": 80, "targetPort": "web", "nodePort": 30080}]);
        self.apply("outer", &json!({"type": "NodePort", "externalIPs": [EXTERNAL], "ports": port}));
        assert!(self.outside.run(&format!("ip route replace {EXTERNAL}/32 via 192.168.99.12")).is_some());
        for client in [&self.pods[..], &self.nodes[..], &[self.outside]].concat() {
            for target in ["192.168.99.11:30080", "192.168.99.12:30080", &format!("{EXTERNAL}:80")] {
                assert_eq!(self.answers(client, target)[0].len(), 2, "{target}: both servers");
            }
        }
        let [_, sources] = self.answers(self.outside, "192.168.99.11:30080");
        assert!(!sources.contains("192.168.99.1"), "masqueraded: {sources:?}");
        assert!(self.nodes[0].is_refused("127.0.0.1:30080"), "no NodePort at the loopback");
    }

    /// Only the own node's endpoint answers; clients keep their address; health checks tell the load balancer.
    fn local_traffic(&self) {
        self.apply(
            "balanced",
            &json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 31000}),
        );
        let balanced = service("balanced", &json!({}));
        self.cluster.api.set_status(&balanced, &json!({"loadBalancer": {"ingress": [{"ip": BALANCED}]}}));
        let target = format!("{BALANCED}:80");
        for (node, address) in [("n1", "192.168.99.11"), ("n2", "192.168.99.12")] {
            assert!(self.outside.run(&format!("ip route replace {BALANCED}/32 via {address}")).is_some());
            let [servers, sources] = self.answers(self.outside, &target);
            assert_eq!(
                (servers.len(), &sources),
                (1, &BTreeSet::from(["192.168.99.1".to_owned()])),
                "{node}"
            );
        }
        assert_eq!(self.answers(self.pods[0], &target)[0].len(), 2, "pods reach all servers");
        let health = |address: &str| {
            self.outside
                .run(&format!("timeout 5 busybox wget -S -qO- http://{address}:31000/ 2>&1 | head -1"))
        };
        let answers = |address: &str, code: &str| health(address).filter(|line| line.contains(code));
        self.cluster.wait("the health check of n1", || answers("192.168.99.11", "200"));
        self.cluster.api.apply(&[servers(1)]);
        self.cluster.wait("the health check of the node without a server", || {
            ["192.168.99.11", "192.168.99.12"].iter().find_map(|address| answers(address, "503"))
        });
        self.cluster.api.apply(&[servers(2)]);
        for address in ["192.168.99.11", "192.168.99.12"] {
            self.cluster.wait("both health checks", || answers(address, "200"));
            let healthz = format!("timeout 5 busybox wget -qO- http://{address}:10256/healthz");
            let said = self.outside.run(&healthz).expect("the health of the node");
            let said: Value = serde_json::from_str(&said).expect("JSON");
            assert_eq!((&said["nodeEligible"], &said["healthy"]), (&json!(true), &json!(true)), "{said}");
        }
        self.apply("near", &json!({"clusterIP": "10.96.0.82", "internalTrafficPolicy": "Local"}));
        for client in [&self.pods[..], &self.nodes[..]].concat() {
            assert_eq!(self.answers(client, "10.96.0.82:80")[0].len(), 1, "the own node's server");
        }
    }

    fn affinity(&self) {
        self.apply("sticky", &json!({"clusterIP": "10.96.0.83", "sessionAffinity": "ClientIP"}));
        for client in self.pods {
            assert_eq!(self.answers(client, "10.96.0.83:80")[0].len(), 1, "one server");
        }
        self.apply("sticky", &json!({"clusterIP": "10.96.0.83", "sessionAffinity": "None"}));
        self.cluster.wait("without affinity both servers answer", || {
            (self.answers(self.pods[0], "10.96.0.83:80")[0].len() == 2).then_some(())
        });
    }

    /// The DNS, by UDP and through its Service.
    fn names(&self) {
        self.apply("headless", &json!({"clusterIP": "None"}));
        for client in self.pods {
            let find = |name: &str| {
                let asked = format!("timeout 5 nslookup {name}.default.svc.cluster.local {DNS} | sed 1,2d");
                client.run(&asked).filter(|said| said.contains("Address"))
            };
            let plain = self.cluster.wait("the name of a Service", || find("plain"));
            assert!(plain.contains("10.96.0.80"), "{plain}");
            let headless = self.cluster.wait("the names of pods", || {
                find("headless").filter(|said| said.matches("10.244.").count() == 2)
            });
            assert!(!headless.contains("10.96."), "{headless}");
        }
    }

    /// A policy sees the client's address, not that of the Service.
    fn policies(&self) {
        let closed = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": "clients", "namespace": "default"},
            "spec": {"podSelector": {"matchLabels": {"app": "servers"}}, "policyTypes": ["Ingress"],
                "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "other"}}}]}]}});
        self.cluster.api.apply(std::slice::from_ref(&closed));
        self.cluster.wait("the policy denies the client", || {
            self.pods.iter().all(|pod| pod.ask("10.96.0.80:80").is_none()).then_some(())
        });
        let mut open = closed.clone();
        open["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"]["app"] = "client".into();
        self.cluster.api.apply(std::slice::from_ref(&open));
        for pod in self.pods {
            assert_eq!(self.answers(pod, "10.96.0.80:80")[0].len(), 2, "both servers");
        }
        self.cluster.api.delete(&[open]);
    }

    fn endpoints_come_and_go(&self) {
        let count = |wanted: usize| {
            self.cluster.wait(&format!("{wanted} servers answer"), || {
                let answers: Option<Vec<_>> =
                    (0..2 * MANY).map(|_| self.pods[0].ask("10.96.0.80:80")).collect();
                let servers: BTreeSet<String> = answers?.into_iter().map(|(server, _)| server).collect();
                (servers.len() == wanted).then_some(())
            });
        };
        self.cluster.api.apply(&[servers(4)]);
        count(4);
        self.cluster.api.apply(&[servers(1)]);
        count(1);
        self.cluster.api.apply(&[servers(0)]);
        self.cluster.wait("no server: refused", || self.pods[0].is_refused("10.96.0.80:80").then_some(()));
        self.cluster.api.apply(&[servers(2)]);
        count(2);
    }
}
