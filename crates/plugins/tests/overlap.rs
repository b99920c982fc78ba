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
struct Pools<'p> {
    folder: PathBuf,
    pod: &'p Pod,
}

impl<'p> Pools<'p> {
    fn new(pod: &'p Pod) -> Pools<'p> {
        let folder = std::env::temp_dir().join(format!("pools-{}", pod.container));
        fs::create_dir_all(&folder).unwrap();
        let plugin = folder.join("host-local");
        let ips =
            format!(r#"{{"cniVersion":"1.0.0","ips":[{{"address":"{ADDRESS}/24","gateway":"10.1.0.1"}}]}}"#);
        let log = folder.join("log");
        let script = format!("#!/bin/sh\necho $CNI_COMMAND $CNI_IFNAME >> {}\necho '{ips}'\n", log.display());
        fs::write(&plugin, script).unwrap();
        fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
        Pools { folder, pod }
    }

    /// The pool of a network has the address for this interface of the pod.
    fn reserve(&self, network: &str, ifname: &str) {
        let folder = self.folder.join("networks").join(network);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(ADDRESS), format!("{}\r\n{ifname}", self.pod.container)).unwrap();
    }

    fn call(&self, plugin: &dyn Plugin, command: Command, ifname: &str, config: &Value) -> Result<Value> {
        let mut config = config.clone();
        config["cniVersion"] = json!("1.0.0");
        config["name"] = json!(format!("{}-{}", config["name"].as_str().unwrap(), self.pod.container));
        config["type"] = json!(plugin.name());
        config["ipam"] =
            json!({"type": "host-local", "subnet": "10.1.0.0/24", "dataDir": self.folder.join("networks")});
        let source = Source { path: self.folder.display().to_string(), ..self.pod.source(ifname) };
        call(plugin, command, &source, &config)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap()
    }
}

impl Drop for Pools<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn an_address_of_a_running_pod_on_the_same_segment_is_refused() {
    with_pod(|pod| {
        let pools = Pools::new(pod);
        let plain = json!({"name": "plain", "bridge": "shared"});
        pools.call(&Bridge, Command::Add, "eth0", &plain).unwrap();
        let network = format!("plain-{}", pod.container);
        pools.reserve(&network, "eth0");
        // The own pool has the address, too, and so has a pool whose pod is gone.
        pools.reserve(&format!("other-{}", pod.container), "eth1");
        pools.reserve("former", "eth5");

        let other = json!({"name": "other", "bridge": "shared"});
        let refused = pools.call(&Bridge, Command::Add, "eth1", &other).unwrap_err().to_cni();
        let why = format!("address {ADDRESS} belongs to {network}/{}/eth0, which is running", pod.container);
        assert_eq!((refused.code, refused.msg), (102, why));
        assert!(pools.log().ends_with("ADD eth1\nDEL eth1\n"), "the lease is released: {}", pools.log());
        assert!(pod.run("ip -o link").lines().all(|line| !line.contains("eth1")));

        // They do not meet on another bridge, and not on the node, which routes for one of them only.
        let elsewhere = json!({"name": "other", "bridge": "separate"});
        pools.call(&Bridge, Command::Add, "eth2", &elsewhere).unwrap();
        pools.call(&Bridge, Command::Del, "eth2", &elsewhere).unwrap();
        pools.call(&Ptp, Command::Add, "eth4", &json!({"name": "routed"})).unwrap();
        pools.call(&Ptp, Command::Del, "eth4", &json!({"name": "routed"})).unwrap();

        // A pod that has lost its interface is no obstacle.
        pod.run("ip link delete eth0");
        pools.call(&Bridge, Command::Add, "eth1", &other).unwrap();
        pools.call(&Bridge, Command::Del, "eth1", &other).unwrap();
        pools.call(&Bridge, Command::Del, "eth0", &plain).unwrap();
    });
}

#[test]
fn an_address_of_a_running_pod_that_the_node_routes_is_refused() {
    with_pod(|pod| {
        let pools = Pools::new(pod);
        let gateway = json!({"name": "gateway", "bridge": "gw", "isGateway": true});
        pools.call(&Bridge, Command::Add, "eth0", &gateway).unwrap();
        pools.reserve(&format!("gateway-{}", pod.container), "eth0");
        let routed = json!({"name": "routed"});
        let refused = pools.call(&Ptp, Command::Add, "eth1", &routed).unwrap_err().to_cni();
        assert_eq!(refused.code, 102, "{refused:?}");
        // Between bridges the whole subnet is refused, which no other address of it could change.
        let second = json!({"name": "second", "bridge": "gw2", "isGateway": true});
        let refused = pools.call(&Bridge, Command::Add, "eth1", &second).unwrap_err().to_cni();
        assert_eq!(
            (refused.code, &*refused.msg),
            (102, "subnet 10.1.0.0/24 overlaps with 10.1.0.1/24 of gw, the gateway of another network")
        );
        pools.call(&Bridge, Command::Del, "eth0", &gateway).unwrap();
        pools.call(&Ptp, Command::Add, "eth1", &routed).unwrap();
        pools.call(&Ptp, Command::Del, "eth1", &routed).unwrap();
    });
}
