//! A Service whose server echoes, and connections to it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use serde_json::{json, Value};

use crate::cluster::{cidr, node};
use crate::testbed::{Namespace, Testbed};

/// For a response that must come, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The Service, its endpoint, and the rules of kube-proxy's iptables mode for it.
pub const SERVICE: &str = "10.96.0.9:7";
const ENDPOINT: &str = "10.1.0.1:9090";
pub const RULES: &str = "
*nat
:KUBE-SERVICES - [0:0]
:KUBE-SVC-ECHO - [0:0]
:KUBE-SEP-ECHO - [0:0]
-I PREROUTING -j KUBE-SERVICES
-I OUTPUT -j KUBE-SERVICES
-A KUBE-SERVICES -d 10.96.0.9 -p tcp -m tcp --dport 7 -j KUBE-SVC-ECHO
-A KUBE-SVC-ECHO -j KUBE-SEP-ECHO
-A KUBE-SEP-ECHO -p tcp -m tcp -j DNAT --to-destination 10.1.0.1:9090
COMMIT
*filter
:KUBE-FORWARD - [0:0]
-I FORWARD -j KUBE-FORWARD
-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT";

/// The objects of the Service, of the node and of the cluster.
pub fn objects() -> Vec<Value> {
    let service = json!({ "apiVersion": "v1", "kind": "Service",
        "metadata": { "namespace": "x", "name": "echo", "uid": "echo" },
        "spec": { "type": "ClusterIP", "clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"], "ipFamilies": ["IPv4"],
            "sessionAffinity": "None", "ports": [{ "name": "t", "port": 7, "protocol": "TCP" }] } });
    let slice = json!({ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "namespace": "x", "name": "echo-1", "uid": "echo-1",
            "labels": { "kubernetes.io/service-name": "echo" } },
        "ports": [{ "name": "t", "port": 9090, "protocol": "TCP" }],
        "endpoints": [{ "addresses": ["10.1.0.1"], "nodeName": "n", "conditions": { "ready": true } }] });
    vec![service, slice, node(), cidr()]
}

/// Serves the endpoint in the first pod.
pub fn serve(testbed: &Testbed) {
    let listener = testbed.pods[0].inside(|| TcpListener::bind(ENDPOINT).unwrap());
    thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            thread::spawn(move || {
                let mut buffer = [0; 10];
                while let Ok(length @ 1..) = stream.read(&mut buffer) {
                    stream.write_all(&buffer[..length]).unwrap();
                }
            });
        }
    });
}

/// An established connection.
pub struct Connection(TcpStream);

impl Connection {
    /// From a pod to the Service.
    pub fn open(client: &Namespace) -> std::io::Result<Connection> {
        Connection::open_within(client, TIMEOUT)
    }

    /// The same, where the Service may not be served yet.
    pub fn open_within(client: &Namespace, timeout: Duration) -> std::io::Result<Connection> {
        let addr: SocketAddr = SERVICE.parse().unwrap();
        let stream = client.inside(|| TcpStream::connect_timeout(&addr, timeout))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let mut connection = Connection(stream);
        connection.echo()?;
        Ok(connection)
    }

    /// Sends a few bytes, and waits for them.
    pub fn echo(&mut self) -> std::io::Result<()> {
        self.0.write_all(b"hello")?;
        let mut answer = [0; 5];
        self.0.read_exact(&mut answer)
    }
}
