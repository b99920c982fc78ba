//! The config directory, watched by `podwire cni status --watch`.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{channel, Receiver};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::world::{World, CONF};

/// The timeout of expected output, on a busy machine too.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Shorter than the polling interval of five seconds. On a busy machine one of these tries must meet it.
const NOTICED: Duration = Duration::from_millis(4500);
const TRIES: usize = 6;

struct Watcher<'w> {
    world: &'w World,
    child: Child,
    lines: Receiver<Value>,
}

impl<'w> Watcher<'w> {
    fn start(world: &'w World) -> Watcher<'w> {
        let script =
            format!("echo $$ > /run/test/watcher; exec env {} cni status --watch --json", world.prefix());
        let mut command = world.node.command("sh");
        let mut child =
            command.args(["-c", &script]).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let _ = sender.send(serde_json::from_str(&line).unwrap());
            }
        });
        Watcher { world, child, lines }
    }

    /// Creates and deletes a file until the output follows in time. Each try begins right after an output, when the
    /// next poll is five seconds away.
    #[track_caller]
    fn assert_notices(&self, outside: &str, inside: &str, (with, without): (&str, &str)) {
        let mut took: Vec<Duration> = Vec::new();
        while took.len() < TRIES && !took.iter().any(|one| *one <= NOTICED) {
            let begin = Instant::now();
            self.world.node.sh(&format!("mv {outside} {inside}"));
            self.expect_network(with);
            took.push(begin.elapsed());
            self.world.node.sh(&format!("mv {inside} {outside}"));
            self.expect_network(without);
        }
        assert!(took.iter().any(|one| *one <= NOTICED), "{with} was said only after {took:?}");
    }

    /// Waits for an output.
    #[track_caller]
    fn expect(&self, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
        let mut lines = Vec::new();
        loop {
            match self.lines.recv_timeout(TIMEOUT) {
                Ok(line) if fits(&line) => return line,
                Ok(line) => lines.push(line),
                Err(_) => panic!("{what} was not said: {lines:#?}"),
            }
        }
    }

    #[track_caller]
    fn expect_network(&self, name: &str) -> Value {
        self.expect(name, |line| line["network"] == name && line["ready"] == true)
    }
}

impl Drop for Watcher<'_> {
    fn drop(&mut self) {
        self.world.node.can("kill $(cat /run/test/watcher)");
        let _ = self.child.wait();
    }
}

fn plain(name: &str, subnet: &str) -> String {
    format!(
        r#"{{"cniVersion": "1.1.0", "name": "{name}", "plugins": [{{"type": "ptp", "ipam": {{"type": "host-local", "subnet": "{subnet}"}}}}]}}"#
    )
}

#[test]
fn the_default_network_follows_the_folder_and_pods_follow_it() {
    let world = World::new();
    let watcher = Watcher::start(&world);
    watcher.expect_network("pods");
    // Renamed from another directory, to the first name of the list.
    world.node.write("/run/test/other", &plain("early", "10.31.0.0/24"));
    watcher.assert_notices("/run/test/other", &format!("{CONF}/05-early.conflist"), ("early", "pods"));
    world.node.sh(&format!("mv /run/test/other {CONF}/05-early.conflist"));
    watcher.expect_network("early");
    world.ok("run one");
    assert!(world.ip("one", false).starts_with("10.31.0."));
    world.node.write(&format!("{CONF}/05-early.conflist"), "{ torn");
    let line = watcher.expect_network("pods");
    assert!(line["skipped"][0]["file"].as_str().unwrap().ends_with("05-early.conflist"), "{line}");
    world.ok("run two");
    assert!(world.ip("two", false).starts_with("10.9.0."));
    world.node.sh(&format!("rm {CONF}/05-early.conflist; mv {CONF}/10-pods.conflist /run/test/away"));
    watcher.expect("nothing there", |line| line["ready"] == false && line["network"].is_null());
    world.node.sh(&format!("rm -r {CONF}"));
    world.node.sh(&format!("mkdir {CONF} && mv /run/test/away {CONF}/10-pods.conflist"));
    watcher.expect_network("pods");
    drop(watcher);
    world.ok("rm --all");
    world.assert_clean("after the folder changed");
}

#[test]
fn a_full_network_is_not_ready_and_reports_why() {
    let world = World::new();
    world.node.write(&format!("{CONF}/05-tiny.conflist"), &plain("tiny", "10.32.0.0/30"));
    let watcher = Watcher::start(&world);
    watcher.expect_network("tiny");
    world.ok("run one");
    let status = world.pod("status");
    assert!(status.status == 1 && status.stdout.contains("network not ready: tiny: "), "{}", status.stdout);
    assert!(world.fails("run two").contains("no IP addresses available"), "a full network gives nothing");
    world.ok("rm one");
    assert_eq!(world.pod("status").status, 0);
    world.node.sh(&format!("rm {CONF}/05-tiny.conflist"));
    watcher.expect_network("pods");
    drop(watcher);
    world.assert_clean("after a full network");
}

#[test]
fn a_plugin_in_its_vendors_folder_is_found() {
    let world = World::new();
    let acme = r#"{"cniVersion": "1.0.0", "name": "acme", "plugins": [{"type": "acme"}]}"#;
    world.node.write(&format!("{CONF}/05-acme.conflist"), acme);
    let watcher = Watcher::start(&world);
    watcher.expect_network("pods");
    world.node.sh("mkdir -p /opt/acme/bin && cp /run/test/bin/slow /opt/acme/bin/.new && mv /opt/acme/bin/.new /opt/acme/bin/acme");
    watcher.expect("acme", |line| line["network"] == "acme" && line["ready"] == true);
    world.ok("run one");
    assert_eq!(world.json("status one")["networks"], serde_json::json!(["acme"]));
    world.ok("rm one");
    assert!(world.node.sh("cat /run/test/log").contains("del "), "its plugin got the DEL");
    drop(watcher);
    world.node.sh(&format!("rm {CONF}/05-acme.conflist"));
    world.assert_clean("after a vendor's plugin");
}
