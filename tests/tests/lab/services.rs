//! Services in a lab: packets from pods, nodes and the router.

use std::collections::BTreeSet;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use podwire_tests::podwire;
use serde_json::json;

use super::laboratory::{lab, name, text, Laboratory};
use super::policies::TempDir;
use super::service_commands::service_json;

/// Answers every connection at port 8080 with the name of the server and the address of the client.
const SERVER: &str = "
import socket, sys
s = socket.socket(socket.AF_INET6)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(('::', 8080)); s.listen(); print('ready', flush=True)
while True:
    c, a = s.accept(); c.sendall((sys.argv[1] + ' ' + a[0].removeprefix('::ffff:')).encode()); c.close()
";

/// Prints the answer, `refused` or `silence`.
const CLIENT: &str = "
import socket, sys
for _ in range(int(sys.argv[3])):
    try:
        s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 10)
        print(s.recv(100).decode()); s.close()
    except ConnectionRefusedError: print('refused')
    except TimeoutError: print('silence')
";

pub const PODS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: shop}
spec: {nodeName: n1}
---
apiVersion: v1
kind: Pod
metadata: {name: far, namespace: shop}
spec: {nodeName: n2}
---
apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: shop, labels: {app: web}}
spec: {nodeName: n1, containers: [{ports: [{name: http, containerPort: 8080}]}]}
";

/// The second pod of the Service, in its own file.
const SECOND: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web-2, namespace: shop, labels: {app: web}}
spec: {nodeName: n2, containers: [{ports: [{name: http, containerPort: 8080}]}]}
";

pub const SERVICES: &str = "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  type: NodePort
  ipFamilyPolicy: PreferDualStack
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: http, nodePort: 30080}]
---
apiVersion: v1
kind: Service
metadata: {name: none, namespace: shop}
spec: {selector: {app: none}, ports: [{port: 80}]}
";

/// A server in a pod.
struct Server(Child);

impl Server {
    fn start(lab: &Laboratory, pod: &str) -> Server {
        let mut command = Command::new(podwire());
        command.args(["lab", "exec", "--name", &lab.name, pod, "--", "python3", "-c", SERVER, pod]);
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("a server in a pod");
        let mut ready = [0; 5];
        child.stdout.as_mut().expect("output").read_exact(&mut ready).expect("the server listens");
        Server(child)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What some connections get: `SERVER ADDRESS` or `refused`.
fn answers(lab: &Laboratory, from: &str, ip: &str, port: &str, times: &str) -> BTreeSet<String> {
    let output = lab.run(&["exec", from, "--", "python3", "-c", CLIENT, ip, port, times]);
    assert!(output.status.success(), "{from} {ip}: {}", text(&output.stderr));
    text(&output.stdout).lines().map(String::from).collect()
}

/// The servers only.
fn servers(lab: &Laboratory, from: &str, ip: &str, port: &str) -> Vec<String> {
    let all = answers(lab, from, ip, port, "30");
    let names: BTreeSet<String> =
        all.iter().map(|answer| answer.split(' ').next().unwrap_or_default().to_owned()).collect();
    names.into_iter().collect()
}

/// The addresses of a Service in the status of the lab.
pub fn addresses(lab: &Laboratory, service: &str) -> Vec<String> {
    let status = lab.status();
    let all = status["services"].as_array().expect("services");
    let one = all.iter().find(|one| one["name"] == service).unwrap_or_else(|| panic!("{service}: {status}"));
    one["ips"].as_array().expect("addresses").iter().map(|ip| ip.as_str().unwrap().to_owned()).collect()
}

#[test]
fn services_in_files_are_served_on_every_node() {
    serve("flannel");
}

#[test]
fn services_in_files_are_served_with_the_calico_agent() {
    serve("calico");
}

fn serve(network: &str) {
    let dir = TempDir::new();
    for (file, content) in [("pods.yaml", PODS), ("second.yaml", SECOND), ("services.yaml", SERVICES)] {
        dir.write(file, content);
    }
    let words = ["--nodes", "2", "--pods", "0", "--cni-network", network, "--services", dir.path()];
    let lab = Laboratory::up(&words);
    let _servers = ["shop/web-1", "shop/web-2"].map(|pod| Server::start(&lab, pod));
    let both = ["shop/web-1", "shop/web-2"];
    let ips = addresses(&lab, "shop/web");
    assert_eq!(ips.len(), 2, "both families: {ips:?}");
    for ip in &ips {
        // A client on the node of one endpoint, and one on the node of the other.
        for client in ["shop/client", "shop/far", "n1"] {
            assert_eq!(servers(&lab, client, ip, "80"), both, "{client} {ip}");
        }
    }
    // A pod keeps its address.
    let own = lab.address("shop/client");
    let seen = answers(&lab, "shop/client", &ips[0], "80", "20");
    assert_eq!(seen, both.iter().map(|server| format!("{server} {own}")).collect());
    // The router is outside of the cluster. Both nodes serve the NodePort.
    for node in ["192.168.10.11", "192.168.10.12", "fd00:0:0:10::11"] {
        assert_eq!(servers(&lab, "router", node, "30080"), both, "{node}");
    }
    let none = addresses(&lab, "shop/none").remove(0);
    for client in ["shop/client", "n2"] {
        assert_eq!(answers(&lab, client, &none, "80", "1"), BTreeSet::from(["refused".to_owned()]));
    }
    assert_eq!(answers(&lab, "shop/client", &ips[0], "81", "1"), BTreeSet::from(["refused".to_owned()]));

    // Without its labels a pod is no endpoint. The addresses stay.
    dir.write("second.yaml", &SECOND.replace("{app: web}", "{}"));
    let (applied, done) = lab.json(&["apply"]);
    assert!(done && applied["services"] == 2, "{applied}");
    assert_eq!(addresses(&lab, "shop/web"), ips);
    for client in ["shop/client", "shop/far"] {
        assert_eq!(servers(&lab, client, &ips[0], "80"), ["shop/web-1"], "{client}");
    }
    assert_eq!(servers(&lab, "router", "192.168.10.12", "30080"), ["shop/web-1"]);

    // A file with an error changes nothing.
    dir.write("second.yaml", "kind: [");
    let said = lab.run(&["apply"]);
    assert!(!said.status.success() && text(&said.stderr).contains("second.yaml"), "{}", text(&said.stderr));
    assert_eq!(servers(&lab, "shop/far", &ips[0], "80"), ["shop/web-1"]);
    dir.write("second.yaml", SECOND);
    assert!(lab.run(&["apply"]).status.success());

    // The agent repairs a flushed table, and the Services work while it is dead.
    for fault in ["flush-rules", "kill-agent"] {
        assert!(lab.run(&["break", fault, "n1"]).status.success());
        if fault == "flush-rules" {
            let healed = lab.run(&["heal"]);
            assert!(healed.status.success(), "{}", text(&healed.stderr));
        }
        assert_eq!(servers(&lab, "shop/client", &ips[0], "80"), both, "{fault}");
        let listed = service_json(&lab, "n1", &["list"]);
        assert_eq!(listed["services"][1]["name"], "web", "{fault}: {listed}");
    }
    assert!(lab.run(&["heal"]).status.success());
    assert_eq!(lab.status()["healthy"], true);
    // Its pods have other addresses after a reboot.
    assert!(lab.run(&["break", "reboot-node", "n2"]).status.success());
    let healed = lab.run(&["heal"]);
    assert!(healed.status.success(), "{}", text(&healed.stderr));
    let _second = Server::start(&lab, "shop/web-2");
    let end = Instant::now() + Duration::from_secs(20);
    // The routes between nodes are set up shortly after the agents have each other's node.
    while servers(&lab, "shop/client", &ips[0], "80") != both {
        assert!(Instant::now() < end, "{}", lab.status());
    }
}

#[test]
fn mistakes_in_files_of_services_are_reported() {
    let dir = TempDir::new();
    let said = lab(&["up", "--name", &name(), "--services", "/nowhere"]);
    let words = text(&said.stderr);
    assert!(!said.status.success() && words.contains("find the directory of Services /nowhere"), "{words}");
    dir.write("a.yaml", "kind: [");
    let said = lab(&["up", "--name", &name(), "--services", dir.path()]);
    assert!(!said.status.success() && text(&said.stderr).contains("a.yaml"), "{}", text(&said.stderr));
    // What is right takes effect, and the status names the rest.
    dir.write("a.yaml", &SERVICES.replace("type: NodePort", "type: NodePort\n  externalIPs: [127.0.0.1]"));
    let lab = Laboratory::up(&["--nodes", "1", "--pods", "0", "--services", dir.path()]);
    let why = "problem: Service shop/web: externalIPs: \"127.0.0.1\" is a loopback address; it is not served";
    assert!(lab.started.contains(why), "{}", lab.started);
}

/// One directory with both, as a user has it.
#[test]
fn policies_and_services_share_a_directory() {
    let dir = TempDir::new();
    for (file, content) in [("pods.yaml", PODS), ("second.yaml", SECOND), ("services.yaml", SERVICES)] {
        dir.write(file, content);
    }
    let closed = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: web, namespace: shop}\n\
                  spec: {podSelector: {matchLabels: {app: web}}, ingress: [{from: [{podSelector: {matchLabels: {may: \"yes\"}}}]}]}\n";
    dir.write("policy.yaml", closed);
    let words = ["--nodes", "2", "--pods", "0", "--policies", dir.path(), "--services", dir.path()];
    let lab = Laboratory::up(&words);
    let _servers = ["shop/web-1", "shop/web-2"].map(|pod| Server::start(&lab, pod));
    let ip = addresses(&lab, "shop/web").remove(0);
    let connect = "import socket, sys; socket.create_connection((sys.argv[1], 80), 2)";
    let connects =
        |from: &str| lab.run(&["exec", from, "--", "python3", "-c", connect, &ip]).status.success();
    assert!(!connects("shop/client"), "the policy sees the pod behind the Service");
    dir.write(
        "pods.yaml",
        &PODS.replacen(
            "name: client, namespace: shop",
            "name: client, namespace: shop, labels: {may: \"yes\"}",
            1,
        ),
    );
    let (applied, _) = lab.json(&["apply"]);
    assert_eq!((&applied["policies"], &applied["services"]), (&json!(1), &json!(2)), "{applied}");
    assert_eq!(servers(&lab, "shop/client", &ip, "80"), ["shop/web-1", "shop/web-2"]);
    assert!(!connects("shop/far"));
}
