//! A node with its own PID namespace, whose processes end with it; a network; and `podwire pod` on it.

use std::process::Command;
use std::time::{Duration, Instant};

use podwire_tests::{assert_same, ours, podwire, Node, Output, Pod};
use serde_json::Value;

/// Its first process reaps orphans, and all other processes end with it.
const SETUP: &str = "set -e
read number rest < /proc/self/stat
mount -t proc none /proc
mount -t tmpfs none /run
mount -t tmpfs none /var/lib
mount -t tmpfs none /opt
mkdir -p /run/netns /run/test/conf /run/test/bin /var/lib/cni
ip link set lo up
echo ready $number
cat >/dev/null
:";

pub const CONF: &str = "/run/test/conf";

/// A network with both families, ports and limits.
pub const PODS: &str = r#"{"cniVersion": "1.1.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "br0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "dns": {"nameservers": ["10.9.0.53"], "search": ["lan"]},
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.9.0.0/16"}], [{"subnet": "fd09::/64"}]],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}},
  {"type": "bandwidth", "capabilities": {"bandwidth": true}},
  {"type": "firewall"}]}"#;

/// A foreign plugin. It records its start, and waits while a gate exists, with a timeout.
pub const SLOW: &str = r#"#!/bin/sh
cat > /dev/null
case $CNI_COMMAND in
  VERSION) echo '{"cniVersion": "1.0.0", "supportedVersions": ["1.0.0"]}' ;;
  ADD) echo "begin $CNI_CONTAINERID" >> /run/test/log
       for n in $(seq 1200); do [ -e /run/test/gate ] || break; sleep 0.05; done
       echo "end $CNI_CONTAINERID" >> /run/test/log
       echo '{"cniVersion": "1.0.0"}' ;;
  DEL) echo "del $CNI_CONTAINERID $CNI_NETNS" >> /run/test/log ;;
esac
"#;

pub struct World {
    pub node: Node,
    plugins: String,
    clean: String,
}

impl World {
    /// A node where one pod was started and removed, so that what stays by design exists.
    pub fn new() -> World {
        World::with_plugins(&ours())
    }

    pub fn with_plugins(plugins: &str) -> World {
        let mut holder = Command::new("unshare");
        holder.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]);
        holder.args(["--", "sh", "-c", SETUP]);
        let node = Node::held_by(holder, &["--net", "--mount", "--pid"]);
        node.write(&format!("{CONF}/10-pods.conflist"), PODS);
        node.write("/run/test/bin/slow", SLOW);
        node.sh("chmod +x /run/test/bin/slow");
        if plugins != ours() {
            node.sh(&format!("mkdir -p {plugins} && cp {}/* {plugins}", ours()));
        }
        let plugins = format!("{plugins}:/run/test/bin");
        let mut world = World { node, plugins, clean: String::new() };
        world.ok("run first --port 1:1");
        world.ok("rm first");
        world.clean = world.settled();
        world
    }

    /// `podwire pod` with these arguments.
    pub fn pod(&self, words: &str) -> Output {
        self.run(&format!("pod {words}"))
    }

    /// `podwire` with these arguments.
    pub fn run(&self, words: &str) -> Output {
        Output::from(self.node.try_sh(&format!("{} {words}", self.prefix())))
    }

    /// The program and its first arguments.
    pub fn prefix(&self) -> String {
        format!("NO_COLOR=1 CNI_PATH={} NETCONFPATH={CONF} {}", self.plugins, podwire())
    }

    /// Runs `podwire pod` and returns its output; panics if it fails.
    #[track_caller]
    pub fn ok(&self, words: &str) -> String {
        let output = self.pod(words);
        assert_eq!(output.status, 0, "{words}: {}{}", output.stdout, output.stderr);
        output.stdout
    }

    /// Runs `podwire pod`, which must fail, and returns its error.
    #[track_caller]
    pub fn fails(&self, words: &str) -> String {
        let output = self.pod(words);
        assert_eq!(output.status, 1, "{words}: {}{}", output.stdout, output.stderr);
        output.stderr
    }

    #[track_caller]
    pub fn json(&self, words: &str) -> Value {
        let output = self.pod(&format!("{words} --json"));
        serde_json::from_str(&output.stdout)
            .unwrap_or_else(|error| panic!("{words}: {error}: {}{}", output.stdout, output.stderr))
    }

    /// Runs a pod, and returns it for the harness's functions.
    #[track_caller]
    pub fn start(&self, name: &str, options: &str) -> Pod {
        self.ok(&format!("run {name} {options}"));
        let status = self.json(&format!("status {name}"));
        let netns = status["netns"].as_str().expect("netns").to_owned();
        // Makes `ip netns exec` find it.
        self.node.sh(&format!("ln -sf {netns} /run/netns/{name}"));
        Pod { name: name.into(), netns }
    }

    /// A pod's first address of a family, from the kernel.
    #[track_caller]
    pub fn ip(&self, pod: &str, v6: bool) -> String {
        let status = self.json(&format!("status {pod}"));
        let all: Vec<_> = status["ips"].as_array().expect("ips").iter().filter_map(Value::as_str).collect();
        all.iter().find(|ip| ip.contains(':') == v6).unwrap_or_else(|| panic!("{status}")).to_string()
    }

    /// Everything that a pod could leave, after detached children have ended.
    pub fn settled(&self) -> String {
        let end = Instant::now() + Duration::from_secs(20);
        // The process of a pod whose creator was killed ends soon. Its name is `exe` until it has set it.
        while self.node.can("pgrep -x 'podwire.*|exe'") && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        let processes = self.node.sh("ps axo comm= | grep -E 'podwire|^exe$' | sort || true");
        let mounts = self.node.sh("cut -d' ' -f2,3 /proc/mounts");
        let folders = self.node.sh("ls /run/podwire/pods /run/podwire/ledger 2>/dev/null || true");
        self.node.leftovers() + &processes + &mounts + &folders
    }

    /// Checks that nothing is left of any pod.
    #[track_caller]
    pub fn assert_clean(&self, context: &str) {
        assert_same(&self.clean, &self.settled(), context);
    }
}
