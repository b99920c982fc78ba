//! The program from the outside, with shell scripts as plugins.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::{symlink, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{json, Value};

/// Prints a result for ADD, or fails with the content of the file `fail`.
const PLUGIN: &str = r#"#!/bin/sh
dir=${0%/*}
cat > "$dir/$CNI_COMMAND.stdin"
env > "$dir/$CNI_COMMAND.env"
if [ -f "$dir/fail" ]; then cat "$dir/fail"; exit 1; fi
case $CNI_COMMAND in
ADD) echo '{"cniVersion": "1.1.0", "interfaces": [{"name": "nosuchveth"}, {"name": "eth0", "sandbox": "/x"}],
  "ips": [{"address": "10.1.0.5/16", "gateway": "10.1.0.1", "interface": 1}], "routes": [{"dst": "0.0.0.0/0"}]}' ;;
VERSION) echo '{"cniVersion": "1.1.0", "supportedVersions": ["0.4.0", "1.1.0"]}' ;;
esac
"#;

struct Node {
    root: PathBuf,
}

struct Outcome {
    stdout: String,
    stderr: String,
    code: i32,
}

impl Node {
    fn new() -> Node {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("podwire-program-{}-{number}", std::process::id()));
        for dir in ["bin", "net.d", "cache"] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        let node = Node { root };
        fs::write(node.root.join("bin/link"), PLUGIN).unwrap();
        fs::set_permissions(node.root.join("bin/link"), fs::Permissions::from_mode(0o755)).unwrap();
        let plugin =
            json!({"type": "link", "ipam": {"type": "pool"}, "capabilities": {"portMappings": true}});
        let pods = json!({"cniVersion": "1.1.0", "name": "pods", "plugins": [plugin]});
        fs::write(node.root.join("net.d/10-pods.conflist"), pods.to_string()).unwrap();
        node
    }

    fn run(&self, line: &str) -> Outcome {
        self.call("podwire", line)
    }

    /// Runs the program under another name.
    fn call(&self, name: &str, line: &str) -> Outcome {
        let program = self.root.join(name);
        if !program.exists() {
            symlink(env!("CARGO_BIN_EXE_podwire"), &program).unwrap();
        }
        // In a new network namespace: the namespace of this test plays the pod.
        let mut command = Command::new("unshare");
        let line = line.replace(NETNS, &netns());
        command
            .arg("--net")
            .arg(program)
            .args(line.split_whitespace())
            .env("NETCONFPATH", self.root.join("net.d"));
        command.env("CNI_PATH", self.root.join("bin")).env_remove("CNI_IFNAME");
        if line.starts_with("cni") {
            command.arg("--cache-dir").arg(self.root.join("cache"));
        }
        let output = command.output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().replace(&netns(), NETNS);
        Outcome {
            stdout: text(output.stdout),
            stderr: text(output.stderr),
            code: output.status.code().unwrap(),
        }
    }

    fn fail(&self, msg: &str) {
        let error = json!({"code": 50, "msg": msg, "details": "try later"});
        fs::write(self.root.join("bin/fail"), error.to_string()).unwrap();
    }

    fn stdin(&self, verb: &str) -> Value {
        serde_json::from_slice(&fs::read(self.root.join(format!("bin/{verb}.stdin"))).unwrap()).unwrap()
    }

    fn records(&self) -> usize {
        let entries = fs::read_dir(self.root.join("cache/results")).into_iter().flatten().flatten();
        entries.filter(|entry| entry.path().is_file()).count()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// The namespace of this test, which always exists. The plugins here do not touch it.
const NETNS: &str = "/proc/self/ns/net";

/// Its path for other processes.
fn netns() -> String {
    format!("/proc/{}/ns/net", std::process::id())
}

#[test]
fn a_container_is_attached_listed_checked_and_detached() {
    let node = Node::new();
    let added = node.run(&format!("cni add pods {NETNS} --publish 8080:80"));
    let text = "attached /proc/self/ns/net to pods as eth0\n  address  10.1.0.5/16  gateway 10.1.0.1\n  \
                route    0.0.0.0/0\n  on host  nosuchveth\n  in pod   eth0\n  ports    8080:80\n";
    assert_eq!((added.stdout.as_str(), added.stderr.as_str(), added.code), (text, "", 0));
    let ports = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
    assert_eq!(node.stdin("ADD")["runtimeConfig"]["portMappings"], ports);

    let list: Value = serde_json::from_str(&node.run("cni list --json").stdout).unwrap();
    assert_eq!(list["networks"][0]["plugins"], json!(["link"]));
    let attachment = &list["attachments"][0];
    assert_eq!(
        (&attachment["addresses"], &attachment["netnsExists"]),
        (&json!(["10.1.0.5/16"]), &json!(true))
    );
    assert_eq!(
        attachment["hostInterfaces"],
        json!([{"name": "nosuchveth", "exists": false, "madeBy": null}])
    );
    let table = node.run("cni list").stdout;
    assert!(table.contains("link(pool)") && table.contains("nosuchveth (gone)"), "{table}");

    let checked = node.run(&format!("cni check pods {NETNS}"));
    assert_eq!(checked.stdout, "the attachment of /proc/self/ns/net to pods is intact\n");
    let deleted = node.run(&format!("cni del pods {NETNS}"));
    assert_eq!((deleted.stdout.as_str(), deleted.code), ("detached /proc/self/ns/net from pods\n", 0));
    assert_eq!(node.stdin("DEL")["runtimeConfig"]["portMappings"], ports, "cached by ADD");
    assert_eq!(node.records(), 0);
}

#[test]
fn check_repair_reports_faults_of_other_plugins() {
    let node = Node::new();
    node.run(&format!("cni add pods {NETNS} --container web"));
    let line = format!("cni check pods {NETNS} --container web --repair");
    let whole = node.run(&line);
    assert_eq!(
        (whole.stdout.as_str(), whole.code),
        ("the attachment of /proc/self/ns/net to pods is intact\n", 0)
    );
    node.fail("the link is down");
    let cut = node.run(&line);
    let text = "eth0 of /proc/self/ns/net: not repaired: plugin type=\"link\" name=\"pods\" failed (check): the link is down\n\
                the attachment of /proc/self/ns/net to pods is damaged: detach and attach it again\n";
    assert_eq!((cut.stdout.as_str(), cut.stderr.as_str(), cut.code), (text, "", 1));
    let json: Value = serde_json::from_str(&node.run(&format!("{line} --json")).stdout).unwrap();
    assert_eq!((&json["ok"], &json["repaired"]), (&json!(false), &json!([])));
    assert_eq!((&json["left"][0]["plugin"], &json["left"][0]["why"]), (&json!("link"), &Value::Null));
}

#[test]
fn a_failure_is_printed_once_with_cause_and_hint() {
    let node = Node::new();
    node.fail("no address left");
    let added = node.run(&format!("cni add pods {NETNS}"));
    assert_eq!((added.stdout.as_str(), added.code), ("", 1));
    let head = "podwire: cannot attach /proc/self/ns/net to pods\n  \
                because: plugin type=\"link\" name=\"pods\" failed (add): no address left; try later;";
    assert!(added.stderr.starts_with(head), "{}", added.stderr);
    let json: Value =
        serde_json::from_str(&node.run(&format!("cni check pods {NETNS} --json")).stderr).unwrap();
    assert_eq!((&json["code"], &json["details"]), (&json!(50), &json!("try later")));
    let absent = node.run("cni add nets /proc/self/ns/net");
    assert!(absent.stderr.contains("no net configuration with name \"nets\" in"), "{}", absent.stderr);
    assert!(absent.stderr.ends_with("  hint: there are: pods\n"), "{}", absent.stderr);
    assert_eq!(node.run("cni add pods no-such-namespace").code, 1);
    assert_eq!(node.run("cni frobnicate").code, 2);
}

#[test]
fn ports_need_a_plugin_with_the_capability() {
    let node = Node::new();
    let without = json!({"cniVersion": "1.1.0", "name": "noports", "plugins": [{"type": "link"}]});
    fs::write(node.root.join("net.d/20-noports.conflist"), without.to_string()).unwrap();
    let added = node.run(&format!("cni add noports {NETNS} -p 80:80"));
    assert!(added.stderr.contains("none of its plugins has the capability portMappings"), "{}", added.stderr);
}

#[test]
fn a_capability_that_no_plugin_takes_is_refused() {
    let node = Node::new();
    let added = node.run(&format!("cni add pods {NETNS} --capability mac=c2:11:22:33:44:55"));
    assert_eq!((added.stdout.as_str(), added.code, node.records()), ("", 1, 0));
    let why = "none of its plugins has the capability mac; it has portMappings\n  hint: add {\"capabilities\":{\"mac\":true}}";
    assert!(added.stderr.contains(why), "{}", added.stderr);
}

#[test]
fn misspelt_keys_are_shown_by_add_status_and_list() {
    let node = Node::new();
    let text = r#"{"cniVersion": "1.1.0", "name": "typo", "disableGc": true, "disableChek": true,
        "plugins": [{"type": "link"}]}"#;
    fs::write(node.root.join("net.d/30-typo.conflist"), text).unwrap();
    let warning =
        "30-typo.conflist:1: disableChek: a network list has no such key, so it has no effect; did you mean \
                   disableCheck?\n";
    for line in [format!("cni add typo {NETNS}"), "cni status".into(), "cni list".into()] {
        let shown = node.run(&line);
        assert!(
            shown.stdout.contains(warning) && shown.code == 0,
            "{line}: {}{}",
            shown.stdout,
            shown.stderr
        );
        let json = node.run(&format!("{line} --json")).stdout;
        assert!(json.contains("\"suggestion\": \"disableCheck\""), "{line}: {json}");
    }
    node.fail("no address left");
    let failed = node.run(&format!("cni add typo {NETNS} --container other"));
    assert!(failed.stdout.contains(warning) && failed.code == 1, "{}{}", failed.stdout, failed.stderr);
}

#[test]
fn a_stuck_record_is_removed_by_force_and_audit_offers_it() {
    let node = Node::new();
    let attached = node.run(&format!("cni add pods {NETNS} --container stuck"));
    assert_eq!(attached.code, 0, "{}", attached.stderr);
    // The plugin refuses every call, as one does that never supported the network's version.
    node.fail("incompatible CNI versions");
    fs::remove_file(node.root.join("net.d/10-pods.conflist")).unwrap();
    let record = node.root.join("cache/results/pods-stuck-eth0");
    let gone = fs::read_to_string(&record).unwrap().replace(&netns(), "/run/netns/long-gone");
    fs::write(&record, gone).unwrap();

    let audit = node.run("cni audit --fix");
    let offer = "podwire cni del pods --container stuck --ifname eth0 --force";
    assert!(audit.code == 1 && audit.stdout.contains(offer), "{}{}", audit.stdout, audit.stderr);
    let refused = node.run("cni del pods --container stuck");
    assert!(refused.code == 1 && refused.stderr.contains("incompatible CNI versions"), "{}", refused.stderr);
    assert_eq!(node.records(), 1);
    let forced = node.run("cni del pods --container stuck --force");
    let text = "removed the record of stuck in pods; DEL failed: plugin type=\"link\" name=\"pods\" failed (delete): \
                incompatible CNI versions";
    assert!(forced.code == 0 && forced.stdout.starts_with(text), "{}{}", forced.stdout, forced.stderr);
    assert_eq!((node.records(), node.run("cni audit").code), (0, 0));
    assert_eq!(node.run("cni del pods --container stuck --force").code, 1, "nothing is known of it");
}

#[test]
fn gc_keeps_attachments_whose_namespace_exists() {
    let node = Node::new();
    node.run(&format!("cni add pods {NETNS} --container alive"));
    node.run(&format!("cni add pods {NETNS} --container other"));
    let record = node.root.join("cache/results/pods-other-eth0");
    let gone = fs::read_to_string(&record).unwrap().replace(&netns(), "/run/netns/long-gone");
    fs::write(&record, gone).unwrap();
    fs::write(node.root.join("cache/results/pods-torn-x-eth0"), "").unwrap();

    assert_eq!(node.run("cni gc pods --dry-run").stdout, "would remove other eth0 10.1.0.5/16\n");
    assert_eq!(node.run("cni gc pods").stdout, "removed other eth0 10.1.0.5/16\n");
    let valid = &node.stdin("GC")["cni.dev/valid-attachments"];
    for kept in [("alive", "eth0"), ("torn-x", "eth0"), ("torn", "x-eth0")] {
        assert!(
            valid.as_array().unwrap().contains(&json!({"containerID": kept.0, "ifname": kept.1})),
            "{valid}"
        );
    }
    assert_eq!(node.run("cni gc pods").stdout, "nothing is stale\n");
    assert_eq!(node.run("cni gc pods --all --keep alive/eth0").stdout, "nothing is stale\n");
    assert_eq!(node.run("cni gc pods --all").stdout, "removed alive eth0 10.1.0.5/16\n");
}

#[test]
fn gc_refuses_to_run_without_the_records() {
    let node = Node::new();
    fs::write(node.root.join("cache/results"), "not a directory").unwrap();
    let refused = node.run("cni gc pods");
    assert_eq!((refused.code, refused.stdout.as_str()), (1, ""), "{}", refused.stderr);
    assert!(refused.stderr.contains("cache/results"), "{}", refused.stderr);
    assert!(!node.root.join("bin/GC.stdin").exists(), "a plugin was called");
}

#[test]
fn status_shows_which_network_is_ready() {
    let node = Node::new();
    let old = json!({"cniVersion": "0.4.0", "name": "old", "plugins": [{"type": "absent"}]});
    fs::write(node.root.join("net.d/20-old.conflist"), old.to_string()).unwrap();
    let status = node.run("cni status");
    assert_eq!(status.code, 1);
    assert!(status.stdout.contains("pods     1.1.0    ready\n"), "{}", status.stdout);
    assert!(status.stdout.contains("not ready (7)  plugin type=\"absent\""), "{}", status.stdout);
    assert_eq!(node.run("cni status pods").code, 0);
}

#[test]
fn del_succeeds_without_the_config_and_the_namespace() {
    let node = Node::new();
    node.run(&format!("cni add pods {NETNS} --container web-1"));
    fs::remove_file(node.root.join("net.d/10-pods.conflist")).unwrap();
    let deleted = node.run("cni del pods --container web-1");
    assert_eq!((deleted.stdout.as_str(), deleted.stderr.as_str()), ("detached web-1 from pods\n", ""));
    assert_eq!(node.run("cni del pods --container web-1").code, 1);
}

#[test]
fn gc_removes_the_attachment_of_a_killed_runtime() {
    let node = Node::new();
    let slow =
        PLUGIN.replace("ADD) ", "ADD) touch \"$dir/begun\"; while [ -d \"$dir\" ]; do sleep 0.05; done; ");
    fs::write(node.root.join("bin/link"), slow).unwrap();
    node.run("version");
    let mut runtime = Command::new(node.root.join("podwire"))
        .args(["cni", "add", "pods", &netns(), "--container", "half", "--conf-dir"])
        .arg(node.root.join("net.d"))
        .arg("--plugin-dir")
        .arg(node.root.join("bin"))
        .arg("--cache-dir")
        .arg(node.root.join("cache"))
        .spawn()
        .unwrap();
    while !node.root.join("bin/begun").exists() {
        assert!(runtime.try_wait().unwrap().is_none(), "the program ended");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    runtime.kill().unwrap();
    runtime.wait().unwrap();
    fs::remove_file(node.root.join("bin/link")).unwrap();
    fs::write(node.root.join("bin/link"), PLUGIN).unwrap();
    fs::set_permissions(node.root.join("bin/link"), fs::Permissions::from_mode(0o755)).unwrap();
    assert!(node.run("cni list").stdout.contains("not finished"));
    assert_eq!(node.run("cni gc pods --all").stdout, "removed half eth0\n");
    assert_eq!((node.stdin("DEL").get("prevResult"), node.records()), (None, 0));
}

#[test]
fn called_as_cnitool_it_is_cnitool() {
    let node = Node::new();
    let status = node.call("cnitool", "status pods /var/run/netns/testing");
    assert_eq!((status.stdout.as_str(), status.stderr.as_str(), status.code), ("", "", 0));
    node.fail("no uplink");
    let status = node.call("cnitool", "status pods /var/run/netns/testing");
    assert_eq!((status.stderr.as_str(), status.code), ("no uplink; try later\n", 1));
    let absent = node.call("cnitool", "add nets /var/run/netns/testing");
    assert!(absent.stderr.starts_with("no net configuration with name \"nets\" in "), "{}", absent.stderr);
    assert_eq!(node.call("cnitool", "add pods").code, 1);
}

#[test]
fn version_and_plugins_are_printed() {
    let node = Node::new();
    assert!(node.run("version").stdout.starts_with("podwire 0."));
    let plugins: Value = serde_json::from_str(&node.run("plugins --json").stdout).unwrap();
    assert!(plugins["plugins"].as_array().unwrap().iter().any(|plugin| plugin["type"] == "bridge"));
}
