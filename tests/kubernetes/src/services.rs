//! Pods behind Services, and a cluster DNS: CoreDNS.

use serde_json::{json, Value};

use crate::{coredns, Machine};

/// The page of a pod: its name and the address of the client. Each line on port 9000 is sent back.
const SERVE: &str = "mkdir -p /www/cgi-bin && cd /www/cgi-bin && printf '#!/bin/sh\\necho; echo $(hostname) $REMOTE_ADDR' > who && \
    chmod +x who && (nc -ll -p 9000 -e cat &) && exec httpd -f -p 0.0.0.0:8080 -h /www";

/// The address of the DNS Service.
pub const DNS: &str = "10.96.0.10";

/// The pods of a Service, one on each node at most.
pub fn servers(replicas: u8) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "servers", "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "servers"}},
            "template": {
                "metadata": {"labels": {"app": "servers"}},
                "spec": {
                    "terminationGracePeriodSeconds": 0,
                    "topologySpreadConstraints": [{
                        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
                        "labelSelector": {"matchLabels": {"app": "servers"}},
                    }],
                    "containers": [{
                        "name": "server", "image": podwire_runtime_tests::image::BOX, "command": ["sh", "-c", SERVE],
                        "ports": [{"name": "web", "containerPort": 8080}],
                        "readinessProbe": {
                            "httpGet": {"path": "/cgi-bin/who", "port": 8080}, "periodSeconds": 1, "timeoutSeconds": 10,
                        },
                    }],
                },
            },
        },
    })
}

/// A pod on this node from which Services are used.
pub fn client(node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("client-{node}"), "namespace": "default", "labels": {"app": "client"}},
        "spec": {
            "nodeName": node, "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "client", "image": podwire_runtime_tests::image::BOX, "command": ["sleep", "1000000"],
            }],
        },
    })
}

/// A Service of the servers, with this spec in addition to its ports.
pub fn service(name: &str, spec: &Value) -> Value {
    let mut all = json!({
        "selector": {"app": "servers"},
        // A named port and a number.
        "ports": [{"name": "web", "port": 80, "targetPort": "web"}, {"name": "echo", "port": 9000}],
    });
    let fields = spec.as_object().expect("a spec").clone();
    all.as_object_mut().expect("a spec").extend(fields);
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default"}, "spec": all,
    })
}

/// CoreDNS with its Service, its account and its rights.
pub fn dns() -> Vec<Value> {
    let meta = json!({"name": "coredns", "namespace": "kube-system"});
    let program = coredns();
    let (folder, name) = program.rsplit_once('/').expect("a path");
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "coredns"});
    let config = ".:5353 {\n errors\n ready :8181\n cache 5\n kubernetes cluster.local {\n ttl 1\n }\n}\n";
    vec![
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "coredns"}, "rules": [
            {"apiGroups": [""], "resources": ["services", "namespaces", "pods"], "verbs": ["list", "watch"]},
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
        ]}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "coredns"},
            "roleRef": role, "subjects": [{"kind": "ServiceAccount", "name": "coredns", "namespace": "kube-system"}]}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"Corefile": config}}),
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": {
            "replicas": 2, "selector": {"matchLabels": {"k8s-app": "kube-dns"}},
            "template": {"metadata": {"labels": {"k8s-app": "kube-dns"}}, "spec": {
                "serviceAccountName": "coredns", "terminationGracePeriodSeconds": 0,
                "volumes": [{"name": "config", "configMap": {"name": "coredns"}},
                    {"name": "program", "hostPath": {"path": folder}}],
                "containers": [{
                    "name": "coredns", "image": podwire_runtime_tests::image::BOX,
                    "command": [format!("/program/{name}"), "-conf", "/config/Corefile"],
                    "volumeMounts": [{"name": "config", "mountPath": "/config"}, {"name": "program", "mountPath": "/program"}],
                    "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 1, "timeoutSeconds": 10},
                }],
            }},
        }}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "kube-dns", "namespace": "kube-system"}, "spec": {
            "clusterIP": DNS, "selector": {"k8s-app": "kube-dns"},
            "ports": [{"name": "dns", "port": 53, "targetPort": 5353, "protocol": "UDP"},
                {"name": "dns-tcp", "port": 53, "targetPort": 5353}],
        }}),
    ]
}

/// Who asks.
#[derive(Clone, Copy)]
pub enum Client<'a> {
    /// A container on a machine.
    Pod(&'a Machine, &'a str),
    /// A process of a machine, or of the host outside of the cluster.
    Process(&'a podwire_runtime_tests::Stage),
}

impl Client<'_> {
    /// Runs a script. Returns what it printed, if it succeeded.
    pub fn run(&self, script: &str) -> Option<String> {
        match self {
            Client::Pod(machine, container) => {
                let done = machine.exec(container, script);
                (done.status == 0).then_some(done.stdout)
            }
            Client::Process(stage) => {
                let done = stage.try_sh(script);
                done.status.success().then(|| String::from_utf8_lossy(&done.stdout).into_owned())
            }
        }
    }

    /// Asks a server for its page: the server's name, and the address that it saw.
    pub fn ask(&self, target: &str) -> Option<(String, String)> {
        let wget = match self {
            Client::Pod(..) => "wget",
            Client::Process(_) => "busybox wget",
        };
        let said = self.run(&format!("timeout 5 {wget} -qO- http://{target}/cgi-bin/who"))?;
        let (server, source) = said.trim().split_once(' ')?;
        Some((server.into(), source.into()))
    }

    /// Whether a connection is refused at once.
    pub fn is_refused(&self, target: &str) -> bool {
        let (host, port) = target.rsplit_once(':').expect("a port");
        let nc = match self {
            Client::Pod(..) => "nc",
            Client::Process(_) => "busybox nc",
        };
        // 143 would be a timeout.
        self.run(&format!("timeout 4 {nc} {host} {port} </dev/null 2>&1; [ $? = 1 ]")).is_some()
    }
}
