//! The real kube-proxy in a node's namespace, with an API server that the test writes objects to.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use podwire_netlink::{nft, Socket};
use podwire_services::Kind;
use podwire_test_servers::{kubernetes_programs, StandInApiServer};
use podwire_tests::Process;
use serde_json::{json, Value};
use tokio::sync::oneshot;

use crate::testbed::{run, Namespace};
use crate::world::{kind_of, node, service_cidr};

/// The time limit of everything that kube-proxy must do, for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(180);
/// The node's zone, and another one.
const ZONES: [&str; 2] = ["y", "z"];
pub const ZONE: &str = ZONES[1];

/// kube-proxy. `None`, with a message, where it cannot be built.
pub fn program() -> Option<PathBuf> {
    // Not println: the test runner captures it.
    let say = |why| drop(writeln!(std::io::stderr(), "left out: Services beside kube-proxy ({why})"));
    let folder = kubernetes_programs(&["kube-proxy"]).map_err(say).ok()?;
    Some(folder.join("kube-proxy"))
}

/// A running kube-proxy.
pub struct KubeProxy {
    _process: Process,
    server: StandInApiServer,
    /// Ends the thread that serves the API, when it is dropped.
    _stop: oneshot::Sender<()>,
    /// Announces changes of the node's rules.
    notices: Socket,
    /// The objects of the current world: name by collection.
    present: BTreeMap<(String, String), Value>,
    /// Counts worlds.
    generation: u16,
    _dir: Dir,
}

impl KubeProxy {
    pub fn start(program: &Path, namespace: &Namespace) -> KubeProxy {
        namespace.inside(|| {
            let (server, stop) = serve();
            server.put_object(collection(Kind::Node), node(ZONES[0]));
            server.put_object(collection(Kind::ServiceCidr), service_cidr());
            marker(0).into_iter().for_each(|object| server.put_object(collection(kind_of(&object)), object));
            let mut notices = Socket::netfilter().unwrap();
            notices.subscribe(nft::GROUP).unwrap();
            let dir = Dir::new();
            let process = Process::start(command(program, &server.url, &dir.0));
            let mut proxy = KubeProxy {
                _process: process,
                server,
                _stop: stop,
                notices,
                present: BTreeMap::new(),
                generation: 0,
                _dir: dir,
            };
            proxy.wait_for_service_cidrs();
            proxy
        })
    }

    /// kube-proxy 1.35 applies new ServiceCIDRs only with its next full sync, within an hour. Another zone of the node
    /// causes one.
    fn wait_for_service_cidrs(&mut self) {
        let begin = Instant::now();
        for zone in ZONES.iter().cycle() {
            self.server.put_object(collection(Kind::Node), node(zone));
            self.wait(zone);
            let is_known =
                ["ip", "ip6"].iter().zip(["10.96.0.0/16", "fd00:96::/112"]).all(|(family, cidr)| {
                    run(&format!("nft list chain {family} kube-proxy cluster-ips-check")).contains(cidr)
                });
            if is_known && *zone == ZONE {
                break;
            }
            assert!(begin.elapsed() < TIMEOUT, "kube-proxy does not know the ServiceCIDRs");
        }
    }

    /// Replaces the objects, and waits until kube-proxy has them in the kernel.
    pub fn apply(&mut self, namespace: &Namespace, objects: &[Value]) {
        let name = |object: &Value| {
            let name = object["metadata"]["name"].as_str().unwrap().to_owned();
            (collection(kind_of(object)).to_owned(), name)
        };
        let wanted: BTreeMap<_, _> = objects.iter().map(|object| (name(object), object.clone())).collect();
        assert_eq!(wanted.len(), objects.len(), "two objects have the same name");
        let before = std::mem::replace(&mut self.present, wanted);
        for (collection, name) in before.keys().filter(|key| !self.present.contains_key(*key)) {
            self.server.delete_object(collection, name);
        }
        for ((collection, _), object) in
            self.present.iter().filter(|(key, object)| before.get(*key) != Some(object))
        {
            self.server.put_object(collection, object.clone());
        }
        self.generation += 1;
        for object in marker(self.generation) {
            self.server.put_object(collection(kind_of(&object)), object);
        }
        namespace.inside(|| self.wait(ZONE));
    }

    /// Waits until the current marker is in the kernel, for a node in this zone. Events of a kind arrive in their order,
    /// the marker's last, and kube-proxy commits all that have arrived in one transaction of each family.
    fn wait(&mut self, zone: &str) {
        let port = marker_port(self.generation);
        let hinted = |wanted: bool| ZONES.iter().position(|one| (*one == zone) == wanted).unwrap() + 1;
        let (here, elsewhere) = (hinted(true), hinted(false));
        let [here4, elsewhere4] = [here, elsewhere].map(|number| format!("dnat to 10.9.9.{number}:{port}\n"));
        let [here6, elsewhere6] =
            [here, elsewhere].map(|number| format!("dnat to [fd00:9:9::{number}]:{port}\n"));
        let families = [
            ("ip", format!("10.96.255.254 . tcp . {port} "), here4, elsewhere4),
            ("ip6", format!("fd00:96::fffe . tcp . {port} "), here6, elsewhere6),
        ];
        let end = Instant::now() + TIMEOUT;
        for (family, frontend, here, elsewhere) in families {
            loop {
                let table = run(&format!("nft list table {family} kube-proxy 2>&1 || true"));
                if table.contains(&frontend) && table.contains(&here) && !table.contains(&elsewhere) {
                    break;
                }
                let left = end.saturating_duration_since(Instant::now());
                assert!(!left.is_zero(), "kube-proxy has not applied {frontend}:\n{table}");
                self.notices.notice(left, nft::announced_generation).unwrap();
            }
        }
    }
}

/// Serves the API in the calling thread's namespace.
fn serve() -> (StandInApiServer, oneshot::Sender<()>) {
    let ((stop, stopped), (started, server)) = (oneshot::channel(), mpsc::channel());
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            started.send(StandInApiServer::start().await).unwrap();
            let _ = stopped.await;
        });
    });
    (server.recv().unwrap(), stop)
}

/// The path of the collection of a kind. A stand-in serves only the collections of all namespaces.
fn collection(kind: Kind) -> &'static str {
    match kind {
        Kind::Service => "/api/v1/services",
        Kind::EndpointSlice => "/apis/discovery.k8s.io/v1/endpointslices",
        Kind::Node => "/api/v1/nodes",
        Kind::ServiceCidr => "/apis/networking.k8s.io/v1/servicecidrs",
    }
}

/// Always five digits: no number is the beginning of another one.
fn marker_port(generation: u16) -> u16 {
    10000 + generation
}

/// A Service whose port is the number of a generation, with an endpoint for each zone.
fn marker(generation: u16) -> Vec<Value> {
    let port = marker_port(generation);
    let service = json!({ "apiVersion": "v1", "kind": "Service",
        "metadata": { "namespace": "marker", "name": "marker", "uid": "uid-marker" },
        "spec": { "type": "ClusterIP", "clusterIP": "10.96.255.254", "clusterIPs": ["10.96.255.254", "fd00:96::fffe"],
            "ipFamilies": ["IPv4", "IPv6"], "sessionAffinity": "None",
            "ports": [{ "name": "m", "port": port, "protocol": "TCP" }] } });
    let slice = |family: &str, network: &str| {
        let endpoint = |(number, zone): (u8, &&str)| json!({ "addresses": [format!("{network}{number}")], "hints": { "forZones": [{ "name": zone }] } });
        json!({ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family,
            "metadata": { "namespace": "marker", "name": format!("marker-{family}"), "uid": family,
                "labels": { "kubernetes.io/service-name": "marker" } },
            "ports": [{ "name": "m", "port": port, "protocol": "TCP" }],
            "endpoints": (1..).zip(&ZONES).map(endpoint).collect::<Vec<_>>() })
    };
    vec![service, slice("IPv4", "10.9.9."), slice("IPv6", "fd00:9:9::")]
}

fn command(program: &Path, url: &str, dir: &Path) -> Command {
    let credentials = json!({ "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{ "name": "test", "cluster": { "server": url } }],
        "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "test" } }],
        "users": [{ "name": "test", "user": {} }] });
    let kubeconfig = dir.join("kubeconfig");
    std::fs::write(&kubeconfig, credentials.to_string()).unwrap();
    let config = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        // Only this node's pods: a network of all pods makes the replies to another node's pods bypass this node.
        "clusterCIDR": "10.1.0.0/24,fd00:1::/64",
        "hostnameOverride": "n",
        "clientConnection": { "kubeconfig": kubeconfig, "contentType": "application/json", "qps": 1000, "burst": 1000 },
        // Limits that belong to the whole machine, not to the namespace.
        "conntrack": { "maxPerCore": 0, "min": 0 },
        "nftables": { "minSyncPeriod": "5ms" },
        // The stand-in has no lists by watch.
        "featureGates": { "WatchListClient": false },
    });
    let file = dir.join("config");
    std::fs::write(&file, config.to_string()).unwrap();
    let mut command = Command::new(program);
    command.arg(format!("--config={}", file.display()));
    command
}

/// A directory that ends with the test.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Dir {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("podwire-kube-proxy-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Dir(path)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
