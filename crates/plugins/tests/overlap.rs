//! Two networks with overlapping subnets and their own pools: what ADD does when both pools give one address.

#![allow(clippy::unwrap_used)] // A test that cannot go on says so.

mod test_pod;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use podwire_cni_plugin::{Command, Plugin, Result, Source};
use podwire_plugins::{bridge::Bridge, ptp::Ptp};
use serde_json::{json, Value};
use test_pod::{call, with_pod, Pod};

const ADDRESS: &str = "10.1.0.2";

/// A folder with an IPAM plugin that gives each pod the same address, as pools of different networks do, and with the pools.
struct Pools(PathBuf);

impl Pools {
    fn new(pod: &Pod) -> Pools {
        let folder = std::env::temp_dir().join(format!("pools-{}", pod.container));
        fs::create_dir_all(&folder).unwrap();
        let plugin = folder.join("host-local");
        let ips =
            format!(r#"{{"cniVersion":"1.0.0","ips":[{{"address":"{ADDRESS}/24","gateway":"10.1.0.1"}}]}}"#);
        let log = folder.join("log");
        let script = format!("#!/bin/sh\necho $CNI_COMMAND $CNI_IFNAME >> {}\necho '{ips}'\n", log.display());
        fs::write(&plugin, script).unwrap();
        fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
        Pools(folder)
    }

    /// The pool of a network has the address for this interface of the pod.
    fn reserve(&self, network: &str, pod: &Pod, ifname: &str) {
        let folder = self.0.join("networks").join(network);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(ADDRESS), format!("{}\r\n{ifname}", pod.container)).unwrap();
    }

    fn call(
        &self,
        plugin: &dyn Plugin,
        command: Command,
        pod: &Pod,
        ifname: &str,
        config: &Value,
    ) -> Result<Value> {
        let mut config = config.clone();
        config["cniVersion"] = json!("1.0.0");
        config["name"] = json!(format!("{}-{}", config["name"].as_str().unwrap(), pod.container));
        config["type"] = json!(plugin.name());
        config["ipam"] = json!({"type": "host-local", "dataDir": self.0.join("networks")});
        let source = Source { path: self.0.display().to_string(), ..pod.source(ifname) };
        call(plugin, command, &source, &config)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.0.join("log")).unwrap()
    }
}

impl Drop for Pools {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn an_address_of_a_running_pod_on_the_same_segment_is_refused() {
    with_pod(|pod| {
        let pools = Pools::new(pod);
        let plain = json!({"name": "plain", "bridge": "shared"});
        pools.call(&Bridge, Command::Add, pod, "eth0", &plain).unwrap();
        let network = format!("plain-{}", pod.container);
        pools.reserve(&network, pod, "eth0");
        // The own pool has the address, too, and so has a pool whose pod is gone.
        pools.reserve(&format!("other-{}", pod.container), pod, "eth1");
        pools.reserve("former", pod, "eth5");

        let other = json!({"name": "other", "bridge": "shared"});
        let refused = pools.call(&Bridge, Command::Add, pod, "eth1", &other).unwrap_err().to_cni();
        let why = format!("address {ADDRESS} belongs to {network}/{}/eth0, which is running", pod.container);
        assert_eq!((refused.code, refused.msg), (102, why));
        assert!(pools.log().ends_with("ADD eth1\nDEL eth1\n"), "the lease is released: {}", pools.log());
        assert!(pod.run("ip -o link").lines().all(|line| !line.contains("eth1")));

        // They do not meet on another bridge, and not on the node, which routes for one of them only.
        let elsewhere = json!({"name": "other", "bridge": "separate"});
        pools.call(&Bridge, Command::Add, pod, "eth2", &elsewhere).unwrap();
        pools.call(&Bridge, Command::Del, pod, "eth2", &elsewhere).unwrap();
        pools.call(&Ptp, Command::Add, pod, "eth4", &json!({"name": "routed"})).unwrap();
        pools.call(&Ptp, Command::Del, pod, "eth4", &json!({"name": "routed"})).unwrap();

        // A pod that has lost its interface is no obstacle.
        pod.run("ip link delete eth0");
        pools.call(&Bridge, Command::Add, pod, "eth1", &other).unwrap();
        pools.call(&Bridge, Command::Del, pod, "eth1", &other).unwrap();
        pools.call(&Bridge, Command::Del, pod, "eth0", &plain).unwrap();
    });
}

#[test]
fn an_address_of_a_running_pod_that_the_node_routes_is_refused() {
    with_pod(|pod| {
        let pools = Pools::new(pod);
        let gateway = json!({"name": "gateway", "bridge": "gw", "isGateway": true});
        pools.call(&Bridge, Command::Add, pod, "eth0", &gateway).unwrap();
        pools.reserve(&format!("gateway-{}", pod.container), pod, "eth0");
        let routed = json!({"name": "routed"});
        let refused = pools.call(&Ptp, Command::Add, pod, "eth1", &routed).unwrap_err().to_cni();
        assert_eq!(refused.code, 102, "{refused:?}");
        pools.call(&Bridge, Command::Del, pod, "eth0", &gateway).unwrap();
        pools.call(&Ptp, Command::Add, pod, "eth1", &routed).unwrap();
        pools.call(&Ptp, Command::Del, pod, "eth1", &routed).unwrap();
    });
}
