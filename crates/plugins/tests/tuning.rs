//! tuning against the real kernel.

#![allow(clippy::unwrap_used)] // A test that cannot go on says so.

mod test_pod;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use podwire_cni_plugin::{ledger, Command, Source};
use podwire_kernel::Owner;
use podwire_plugins::tuning::Tuning;
use serde_json::{json, Value};
use test_pod::{call, collect_until, go, with_pod, Pod};

/// A folder for the backups of one test.
struct Folder(PathBuf);

impl Folder {
    fn of(pod: &Pod) -> Folder {
        Folder(std::env::temp_dir().join(format!("tuning-{}", pod.container)))
    }

    fn file(&self, pod: &Pod) -> PathBuf {
        self.0.join(format!("{}_eth0.json", pod.container))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn config(prev: &Value, folder: &Folder, settings: Value) -> Value {
    let mut config = settings;
    config["cniVersion"] = json!("1.1.0");
    config["name"] = json!("net");
    config["dataDir"] = json!(folder.0);
    config["prevResult"] = prev.clone();
    config
}

fn everything() -> Value {
    json!({
        "sysctl": {"net.ipv4.conf.IFNAME.arp_notify": "1", "net.ipv4.tcp_rmem": "4096 90000 900000"},
        "mac": "02:00:5E:10:00:01", "mtu": 1400, "promisc": true, "allmulti": true, "txQLen": 77,
    })
}

/// The current values of everything that tuning can set.
fn state(pod: &Pod) -> Value {
    let link = &pod.json("ip -j link show eth0")[0];
    let has = |flag: &str| link["flags"].as_array().unwrap().contains(&json!(flag));
    let knob = |path: &str| pod.within(|| fs::read_to_string(Path::new("/proc/sys").join(path)).unwrap());
    json!({
        "mac": link["address"], "mtu": link["mtu"], "promisc": has("PROMISC"), "allmulti": has("ALLMULTI"),
        "txQLen": link["txqlen"],
        "arp_notify": knob("net/ipv4/conf/eth0/arp_notify").trim(), "tcp_rmem": knob("net/ipv4/tcp_rmem").trim(),
    })
}

#[test]
fn settings_are_applied_reported_checked_and_restored() {
    with_pod(|pod| {
        let (_, prev) = pod.connect("net", "eth0");
        let folder = Folder::of(pod);
        let config = config(&prev, &folder, everything());
        let before = state(pod);
        let result = pod.call(&Tuning, Command::Add, "eth0", &config).unwrap();
        let tuned = json!({
            "mac": "02:00:5e:10:00:01", "mtu": 1400, "promisc": true, "allmulti": true, "txQLen": 77,
            "arp_notify": "1", "tcp_rmem": "4096\t90000\t900000",
        });
        assert_eq!(state(pod), tuned);
        assert_eq!(result["interfaces"][1]["mac"], "02:00:5e:10:00:01");
        assert_eq!(result["interfaces"][1]["mtu"], 1400);
        assert_eq!(result["interfaces"][0], prev["interfaces"][0], "the node's end is left alone");

        let file = folder.file(pod);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let written: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        for key in ["mac", "mtu", "promisc", "allmulti", "txQLen"] {
            assert_eq!(written[key], before[key], "{key}");
        }

        pod.call(&Tuning, Command::Check, "eth0", &config).unwrap();
        // A second ADD keeps the saved values.
        pod.call(&Tuning, Command::Add, "eth0", &config).unwrap();
        pod.call(&Tuning, Command::Del, "eth0", &config).unwrap();
        assert_eq!(state(pod), before);
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0);
        pod.call(&Tuning, Command::Del, "eth0", &config).unwrap();
    });
}

#[test]
fn check_compares_configured_settings_only() {
    with_pod(|pod| {
        let (_, prev) = pod.connect("net", "eth0");
        let folder = Folder::of(pod);
        let all = config(&prev, &folder, everything());
        pod.call(&Tuning, Command::Add, "eth0", &all).unwrap();
        pod.run("ip link set eth0 mtu 1300 promisc off");
        pod.within(|| fs::write("/proc/sys/net/ipv4/conf/eth0/arp_notify", "0").unwrap());
        let text = pod.call(&Tuning, Command::Check, "eth0", &all).unwrap_err().to_string();
        assert!(text.starts_with("Error: Tuning configured value of /proc/sys/net/ipv4/conf/eth0/arp_notify is 1, current value is 0"), "{text}");
        assert!(text.contains("MTU of eth0 is 1400, current value is 1300"), "{text}");
        assert!(text.contains("promisc of eth0 is true, current value is false"), "{text}");
        // Another program set promiscuous mode, which the config does not set.
        pod.run("ip link set eth0 promisc on");
        let little = config(&prev, &folder, json!({"mtu": 1300}));
        pod.call(&Tuning, Command::Check, "eth0", &little).unwrap();
        pod.call(&Tuning, Command::Del, "eth0", &all).unwrap();
    });
}

#[test]
fn a_failed_add_is_undone() {
    with_pod(|pod| {
        let (_, prev) = pod.connect("net", "eth0");
        let folder = Folder::of(pod);
        let before = state(pod);
        let mut settings = everything();
        settings["mtu"] = json!(1_000_000);
        let error = pod.call(&Tuning, Command::Add, "eth0", &config(&prev, &folder, settings)).unwrap_err();
        assert!(error.to_string().starts_with("set MTU of eth0 to 1000000: invalid argument"), "{error}");
        assert_eq!(state(pod), before);
        let settings = json!({"sysctl": {"net.ipv4.conf.IFNAME.arp_notify": "1", "net.nothing.here": "1"}});
        let error = pod.call(&Tuning, Command::Add, "eth0", &config(&prev, &folder, settings)).unwrap_err();
        assert!(error.to_string().contains("/proc/sys/net/nothing/here"), "{error}");
        assert_eq!(state(pod), before);
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0);
        let error = pod
            .call(&Tuning, Command::Add, "eth7", &config(&prev, &folder, json!({"mtu": 1400})))
            .unwrap_err();
        assert!(error.to_string().contains("look up link eth7"), "{error}");
    });
}

#[test]
fn del_removes_the_backup_without_the_namespace() {
    with_pod(|pod| {
        let (_, prev) = pod.connect("net", "eth0");
        let folder = Folder::of(pod);
        let mut config = config(&prev, &folder, everything());
        pod.call(&Tuning, Command::Add, "eth0", &config).unwrap();
        pod.run("ip link del eth0");
        // DEL works with an invalid config, too.
        config["mtu"] = json!("large");
        config.as_object_mut().unwrap().remove("prevResult");
        pod.vanish();
        pod.call(&Tuning, Command::Del, "eth0", &config).unwrap();
        assert!(!folder.file(pod).exists());
        let nowhere = Source { netns: String::new(), ..pod.source("eth0") };
        call(&Tuning, Command::Del, &nowhere, &config).unwrap();
    });
}

#[test]
fn del_succeeds_without_the_interface() {
    with_pod(|pod| {
        let (_, prev) = pod.connect("net", "eth0");
        let folder = Folder::of(pod);
        let config = config(&prev, &folder, everything());
        pod.call(&Tuning, Command::Add, "eth0", &config).unwrap();
        pod.run("ip link del eth0");
        pod.call(&Tuning, Command::Del, "eth0", &config).unwrap();
        assert!(!folder.file(pod).exists());
    });
}

#[test]
fn a_truncated_backup_is_ignored() {
    with_pod(|pod| {
        let (_, prev) = pod.connect("net", "eth0");
        let folder = Folder::of(pod);
        let config = config(&prev, &folder, everything());
        let before = state(pod);
        for garbage in ["", "{\"mac\": \"02:", "[]"] {
            fs::create_dir_all(&folder.0).unwrap();
            fs::write(folder.file(pod), garbage).unwrap();
            fs::write(folder.file(pod).with_extension("json.new"), garbage).unwrap();
            pod.call(&Tuning, Command::Del, "eth0", &config).unwrap();
            assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0);
        }
        fs::write(folder.file(pod).with_extension("json.new"), "{").unwrap();
        pod.call(&Tuning, Command::Del, "eth0", &config).unwrap();
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0);
        assert_eq!(state(pod), before);
    });
}

#[test]
fn each_plugin_restores_changes_of_the_other() {
    with_pod(|pod| {
        let (_, prev) = pod.connect("net", "eth0");
        let folder = Folder::of(pod);
        let settings = json!({"mac": "02:00:5e:10:00:01", "mtu": 1400, "promisc": true, "allmulti": true});
        let mut config = config(&prev, &folder, settings);
        config["cniVersion"] = json!("1.0.0");
        // The installed Go plugin uses a fixed folder; the file is copied.
        let before = state(pod);
        if go("tuning", "ADD", &pod.source("eth0"), &config).is_none() {
            return;
        }
        let fixed = PathBuf::from("/run/cni/tuning").join(format!("{}_eth0.json", pod.container));
        if fixed.exists() {
            config["dataDir"] = json!("/run/cni/tuning");
        }
        assert_eq!(state(pod)["mtu"], 1400);
        pod.call(&Tuning, Command::Check, "eth0", &config).unwrap();
        pod.call(&Tuning, Command::Del, "eth0", &config).unwrap();
        assert_eq!(state(pod), before);
        assert!(!fixed.exists());
        pod.call(&Tuning, Command::Add, "eth0", &config).unwrap();
        go("tuning", "DEL", &pod.source("eth0"), &config);
        assert_eq!(state(pod), before);
        pod.call(&Tuning, Command::Del, "eth0", &config).unwrap();
    });
}

#[test]
fn gc_removes_only_its_networks_stale_files() {
    with_pod(|pod| {
        let net = pod.own_network();
        let (_, prev) = pod.connect(&net, "eth0");
        let folder = Folder::of(pod);
        let mut config = config(&prev, &folder, everything());
        config["name"] = json!(net);
        pod.call(&Tuning, Command::Add, "eth0", &config).unwrap();
        let write = |name: &str, content: Value| fs::write(folder.0.join(name), content.to_string()).unwrap();
        write("a_b_eth0.json", json!({"mtu": 1, "network": net, "containerID": "a_b", "ifname": "eth0"}));
        write("c_eth0.json", json!({"mtu": 1, "network": "other", "containerID": "c", "ifname": "eth0"}));
        write("go_eth0.json", json!({"mtu": 1}));
        config["cni.dev/valid-attachments"] = json!([{"containerID": pod.container, "ifname": "eth0"}]);
        call(&Tuning, Command::Gc, &Source::default(), &config).unwrap();
        let mut left: Vec<_> = fs::read_dir(&folder.0).unwrap().map(|one| one.unwrap().file_name()).collect();
        left.sort();
        let own = format!("{}_eth0.json", pod.container);
        assert_eq!(left, ["c_eth0.json", "go_eth0.json", &own]);
        config["cni.dev/valid-attachments"] = json!([]);
        collect_until(&Tuning, &config, || !folder.file(pod).exists());
    });
}

#[test]
fn a_backup_of_another_network_is_ignored() {
    with_pod(|pod| {
        let (_, prev) = pod.connect("net", "eth0");
        let folder = Folder::of(pod);
        let mut config = config(&prev, &folder, json!({"mtu": 1400}));
        pod.call(&Tuning, Command::Add, "eth0", &config).unwrap();
        // ADD of another network failed under the same name, and DEL follows.
        config["name"] = json!("other");
        config["prevResult"] = json!(null);
        pod.call(&Tuning, Command::Del, "eth0", &config).unwrap();
        assert_eq!(state(pod)["mtu"], 1400);
        assert!(folder.file(pod).exists());
    });
}

#[test]
fn a_network_that_was_renamed_gives_back_what_it_changed() {
    with_pod(|pod| {
        let (_, prev) = pod.connect("net", "eth0");
        let folder = Folder::of(pod);
        let mut config = config(&prev, &folder, json!({"mtu": 1400}));
        let before = state(pod);
        config["prevResult"] = pod.call(&Tuning, Command::Add, "eth0", &config).unwrap();
        config["name"] = json!("renamed");
        pod.call(&Tuning, Command::Del, "eth0", &config).unwrap();
        assert_eq!(state(pod), before);
        assert!(!folder.file(pod).exists());
    });
}

/// A runtime that keeps results by the network's name passes none after the rename.
#[test]
fn a_backup_of_a_network_without_such_a_pod_is_found() {
    with_pod(|pod| {
        let (_, prev) = pod.connect("net", "eth0");
        let folder = Folder::of(pod);
        let mut config = config(&prev, &folder, json!({"mtu": 1400}));
        let before = state(pod);
        pod.call(&Tuning, Command::Add, "eth0", &config).unwrap();
        let owner = Owner::new("net", &*pod.container, "eth0");
        let recorded = ledger::find(&owner, "tuning").unwrap();
        // Without its lock, which a process that another test is starting can hold for a moment.
        fs::remove_file(&recorded.path).unwrap();
        config["name"] = json!("renamed");
        config["prevResult"] = json!(null);
        pod.call(&Tuning, Command::Del, "eth0", &config).unwrap();
        assert_eq!(state(pod), before);
        assert!(!folder.file(pod).exists());
    });
}

#[test]
fn without_settings_the_result_is_passed_on() {
    with_pod(|pod| {
        let (_, prev) = pod.connect("net", "eth0");
        let folder = Folder::of(pod);
        let nothing = config(&prev, &folder, json!({}));
        let result = pod.call(&Tuning, Command::Add, "eth0", &nothing).unwrap();
        assert_eq!(result["interfaces"], prev["interfaces"]);
        assert!(!folder.0.exists());
        let unchained = json!({"cniVersion": "1.0.0", "name": "net", "mtu": 1400});
        let error = pod.call(&Tuning, Command::Add, "eth0", &unchained).unwrap_err().to_string();
        assert!(error.starts_with("Required prevResult missing"), "{error}");
    });
}
