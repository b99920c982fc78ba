//! A node: containerd, kubelet and kube-proxy on a stage.

use std::path::{Path, PathBuf};

use podwire_runtime_tests::{Container, Containerd, Cri, Daemon, Stage, Unlike, SOCKET};
use podwire_tests::Output;
use serde_json::{json, Value};

use crate::control_plane::{logged, ControlPlane, ADDRESS, PODS};
use crate::metrics::Metrics;

/// Values under /proc/sys that kubelet requires. It would write them, for the whole machine that runs the test.
const KERNEL: &[(&str, &str)] = &[
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// A node of the cluster.
#[derive(Debug)]
pub struct Machine {
    /// Its Kubernetes name.
    pub name: String,
    /// Its address.
    pub address: String,
    containerd: Containerd,
    /// `None` only while its power is cut.
    disk: Option<Disk>,
    /// kubelet and kube-proxy.
    daemons: Vec<Daemon>,
}

/// A directory that is removed when this value is dropped.
#[derive(Debug)]
pub(crate) struct Disk(PathBuf);

impl Disk {
    /// Creates a directory in memory.
    pub(crate) fn new(name: &str) -> Disk {
        let folder = PathBuf::from(format!("/run/podwire-disk-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        Disk(folder)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

impl Machine {
    /// Boots a machine with this disk, which may be empty. `number` is the last part of its address.
    pub(crate) fn boot(
        control: &ControlPlane,
        (name, number): (&str, u8),
        image: &str,
        disk: Disk,
    ) -> Machine {
        let stage = Stage::with_disk(&disk.0);
        connect(control, &stage, name, number);
        let containerd = Containerd::start_unlike(stage, Unlike { no_network: true, ..Unlike::default() });
        containerd.sh(&format!("ctr --namespace k8s.io images import {image}"));
        shield(&containerd);
        let address = format!("192.168.99.{number}");
        let mut machine =
            Machine { name: name.into(), address, containerd, disk: Some(disk), daemons: Vec::new() };
        machine.start_kubelet(control);
        machine.start_proxy(control);
        machine
    }

    /// Cuts the power. Returns the disk.
    pub(crate) fn unplug(mut self) -> Disk {
        self.disk.take().expect("a machine that runs")
    }

    fn start_kubelet(&mut self, control: &ControlPlane) {
        let config = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": format!("unix://{SOCKET}"),
            "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
            "authorization": {"mode": "AlwaysAllow"},
            // The machine that runs the test may have cgroups v1, swap, and no right to raise limits.
            "cgroupDriver": "cgroupfs",
            "failCgroupV1": false,
            "failSwapOn": false,
            "oomScoreAdj": 0,
            "maxOpenFiles": 20000,
            // Disks in memory have no device statistics, and the eviction of images must not happen.
            "localStorageCapacityIsolation": false,
            "evictionHard": {"memory.available": "50Mi"},
            "imageGCHighThresholdPercent": 100,
            // The default is a directory of the machine that runs the test.
            "volumePluginDir": "/var/lib/kubelet/volume-plugins",
            "resolvConf": "",
            "nodeStatusUpdateFrequency": "2s",
            // The default without a `nodeStatusUpdateFrequency`. With one, every status is sent, changed or not.
            "nodeStatusReportFrequency": "5m",
        });
        self.containerd.write("/etc/kubernetes/kubelet.json", &config.to_string());
        let credentials = control.kubeconfig(&format!("system:node:{}", self.name)).to_string();
        self.containerd.write("/etc/kubernetes/kubelet.conf", &credentials);
        let arguments = format!(
            "--config=/etc/kubernetes/kubelet.json --kubeconfig=/etc/kubernetes/kubelet.conf \
             --hostname-override={} --node-ip={}",
            self.name, self.address
        );
        self.run("kubelet", &arguments);
    }

    fn start_proxy(&mut self, control: &ControlPlane) {
        let config = json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clusterCIDR": PODS,
            "hostnameOverride": self.name,
            "clientConnection": {"kubeconfig": "/etc/kubernetes/kube-proxy.conf"},
            // The size of the connection table is shared with the whole machine.
            "conntrack": {"maxPerCore": 0, "min": 0},
        });
        self.containerd.write("/etc/kubernetes/kube-proxy.json", &config.to_string());
        let credentials = control.kubeconfig("system:kube-proxy").to_string();
        self.containerd.write("/etc/kubernetes/kube-proxy.conf", &credentials);
        self.run("kube-proxy", "--config=/etc/kubernetes/kube-proxy.json");
    }

    /// Kills kube-proxy. Its rules stay.
    pub fn stop_proxy(&mut self) {
        self.daemons.pop().expect("kube-proxy was started last").kill(&self.containerd);
    }

    fn run(&mut self, name: &str, arguments: &str) {
        self.daemons.push(self.containerd.daemon(&["sh", "-c", &logged(name, arguments)]));
    }

    /// Its stage.
    pub fn stage(&self) -> &Stage {
        &self.containerd
    }

    /// Whether its agent is ready.
    pub fn agent_is_ready(&self) -> bool {
        self.stage().can("timeout 60 busybox wget -qO /dev/null http://127.0.0.1:9472/readyz")
    }

    /// Whether its agent has the same nodes as the API server.
    pub fn agent_is_current(&self) -> bool {
        self.agent_status()["store"]["synced"] == true
    }

    /// The `/status` of its agent; `null` if it does not answer.
    pub fn agent_status(&self) -> Value {
        let asked = self.stage().try_sh("timeout 5 busybox wget -qO- http://127.0.0.1:9472/status").stdout;
        serde_json::from_slice(&asked).unwrap_or_default()
    }

    /// The metrics of its agent.
    pub fn agent_metrics(&self) -> Option<Metrics> {
        self.metrics(9472)
    }

    /// The metrics of the controller, if it runs here.
    pub fn controller_metrics(&self) -> Option<Metrics> {
        self.metrics(9473)
    }

    /// The processor time that its agent has used, in nanoseconds, and how often its threads went to sleep.
    pub fn agent_activity(&self) -> (f64, f64) {
        let script = "for process in /proc/[0-9]*; do \
             [ \"$(readlink $process/ns/net)\" = \"$(readlink /proc/self/ns/net)\" ] || continue; \
             tr '\\0' ' ' <$process/cmdline | grep -q '^[^ ]*podwire agent ' || continue; \
             cat $process/task/*/schedstat; grep -h '^voluntary' $process/task/*/status; \
             done 2>/dev/null";
        let said = self.stage().sh(script);
        assert!(!said.is_empty(), "{}: no agent runs", self.name);
        let number = |word: Option<&str>| -> f64 { word.and_then(|word| word.parse().ok()).unwrap_or(0.0) };
        said.lines().fold((0.0, 0.0), |(time, sleeps), line| {
            match line.strip_prefix("voluntary_ctxt_switches:") {
                Some(count) => (time, sleeps + number(Some(count.trim()))),
                None => (time + number(line.split(' ').next()), sleeps),
            }
        })
    }

    fn metrics(&self, port: u16) -> Option<Metrics> {
        let asked = format!("timeout 5 busybox wget -qO- http://127.0.0.1:{port}/metrics");
        let said = self.stage().try_sh(&asked);
        said.status.success().then(|| Metrics::read(&String::from_utf8_lossy(&said.stdout)))
    }

    /// Runs a shell script in a container. `container` is its id as Kubernetes shows it (`containerd://…`).
    pub fn exec(&self, container: &str, script: &str) -> Output {
        let id = container.rsplit('/').next().unwrap_or_default().to_owned();
        let mut cri = Cri::connect(&self.stage().file(SOCKET));
        let done = cri.exec(&Container { id }, script);
        Output { status: done.status, stdout: done.printed, stderr: String::new() }
    }

    /// The number of links to pods.
    pub fn veths(&self) -> usize {
        self.stage()
            .json("ip -j link show type veth")
            .as_array()
            .map_or(0, |all| all.iter().filter(|link| link["master"] == "cni0").count())
    }
}

/// A link from the machine to the control plane's bridge, which is also its default gateway.
fn connect(control: &ControlPlane, stage: &Stage, name: &str, number: u8) {
    let (hub, node) = (control.stage.pid().to_string(), stage.pid().to_string());
    control.stage.sh(&format!("ip link delete {name} 2>/dev/null || true"));
    let words = ["link", "add", name, "netns", &hub, "type", "veth", "peer", "name", "eth0", "netns", &node];
    let made = std::process::Command::new("ip").args(words).status().expect("ip");
    assert!(made.success(), "a link to {name}");
    control.stage.sh(&format!("ip link set {name} master lan up"));
    stage.sh(&format!(
        "ip address add 192.168.99.{number}/24 dev eth0 && ip link set eth0 up && ip route add default via {ADDRESS}"
    ));
}

/// Mounts files with the values that kubelet requires over /proc/sys, so that kubelet writes nothing to the kernel.
fn shield(stage: &Stage) {
    for (key, value) in KERNEL {
        let plain = format!("/run/kernel/{key}");
        stage.write(&plain, &format!("{value}\n"));
        if Path::new("/proc/sys").join(key).exists() {
            stage.sh(&format!("mount --bind {plain} /proc/sys/{key}"));
        }
    }
}
