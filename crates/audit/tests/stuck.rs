//! Records that no DEL can remove.

#![allow(clippy::unwrap_used)] // A test that cannot go on says so.

use std::fs;
use std::path::PathBuf;

use podwire_audit::{Location, Node};
use podwire_cni_runtime::{Cache, ConfigFolder, Identity, Runtime};
use serde_json::{json, Value};

struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        let folder = Folder(std::env::temp_dir().join(format!("podwire-audit-{}", std::process::id())));
        fs::create_dir_all(folder.0.join("results")).unwrap();
        folder
    }

    /// The record of a pod that is gone.
    fn record(&self, network: &str, config: &[u8]) -> PathBuf {
        let path = Cache::new(&self.0).path(network, "c", "eth0").unwrap();
        let record = json!({
            "kind": "cniCacheV1", "containerId": "c", "ifName": "eth0", "networkName": network,
            "netns": "/run/netns/podwire-no-such-namespace", "config": base64(config),
        });
        fs::write(&path, record.to_string()).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

fn list(network: &str, version: &str, plugin: Value) -> Vec<u8> {
    json!({"cniVersion": version, "name": network, "plugins": [plugin]}).to_string().into_bytes()
}

#[test]
fn a_record_that_no_del_can_remove_is_shown_with_the_way_out() {
    let folder = Folder::new();
    let noop = || json!({"type": "noop"});
    let mut stuck = Vec::new();
    for (network, config, why) in [
        ("invalid", b"{".to_vec(), "JSON"),
        ("other", list("renamed", "1.0.0", noop()), "is of network \"renamed\""),
        ("removed", list("removed", "1.0.0", json!({"type": "podwire-gone"})), "podwire-gone"),
        (
            "no-ipam",
            list("no-ipam", "1.0.0", json!({"type": "ptp", "ipam": {"type": "podwire-gone"}})),
            "podwire-gone",
        ),
        ("old", list("old", "0.2.0", json!({"type": "bandwidth"})), "0.2.0"),
    ] {
        folder.record(network, &config);
        stuck.push((network, why));
    }
    let deletable = folder.record("noop", &list("noop", "1.0.0", noop()));
    let registry = podwire_plugins::registry();
    let node = Node {
        folder: ConfigFolder::new(folder.0.join("net.d")),
        cache: Cache::new(&folder.0),
        runtime: Runtime::new([folder.0.join("bin")]).cache_folder(&folder.0).registry(registry),
        registry,
    };
    let mut wrong = Vec::new();
    let faults = node.audit();
    for (network, why) in &stuck {
        let owner = format!("{network}/c/eth0");
        let found: Vec<_> = faults.iter().filter(|fault| fault.owner == owner).collect();
        let way_out =
            format!("`podwire cni del {network} --container c --ifname eth0 --force` removes the record");
        let is_named = |text: &str| text.contains(&way_out) && text.contains(why);
        let is_expected = found.len() == 1
            && found[0].location == Location::Record
            && !found[0].is_repairable()
            && is_named(&found[0].what());
        if !is_expected {
            wrong
                .push(format!("{network}: {:?}", found.iter().map(|fault| fault.what()).collect::<Vec<_>>()));
        }
        let identity = Identity::new("c", "eth0").unwrap();
        assert!(node.runtime.forget(network, &identity).unwrap(), "{network}: the way out");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let of_noop = faults.into_iter().filter(|fault| fault.owner == "noop/c/eth0");
    of_noop.for_each(|fault| fault.repair().unwrap());
    assert!(!deletable.exists());
}
