//! Connections that a changed policy no longer allows: they continue, or end with `--policy-cut`.

use std::time::Duration;

use podwire_tests::Process;

use crate::policies::{add_all, is_kept_from, stage_without_agents, start_with, FOLDER, POLICIES};
use crate::policy_reports::{dropped, metric};
use crate::stage::Stage;

/// One end of a stream: it sends a byte every 20 ms, or writes the number of received bytes into a file.
pub const STREAM: &str = r#"
import os, socket, sys, time
kind, role, does, address, port, file = sys.argv[1:]
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM)
if role == "listen":
    s.bind((address, int(port)))
    if kind == "tcp":
        s.listen()
    open(file + ".listens", "w").close()
    if kind == "tcp":
        s = s.accept()[0]
else:
    s.connect((address, int(port)))
count = 0
while True:
    if does == "send":
        s.send(b".")
        time.sleep(0.02)
    else:
        got, peer = s.recvfrom(100)
        if kind == "udp" and count == 0:
            s.sendto(b"!", peer)  # datagrams become a connection when one is answered; a later answer could begin another, the other way
        count += len(got)
        with open(file + ".new", "w") as f:
            f.write(str(count))
        os.rename(file + ".new", file)
"#;
const OPEN: u16 = 7003;
const CUT: &str = "the connection was closed because policies no longer allow it";

/// Bytes between the web, which opens the connection, and the database.
struct Stream {
    port: u16,
    _ends: [Process; 2],
}

impl Stream {
    /// Starts both ends. `does` is `send` or `count`, for the web and for the database.
    fn start(stage: &Stage, kind: &str, port: u16, does: [&str; 2]) -> Stream {
        let (address, port_word) = (stage.address(1, "db"), port.to_string());
        let file = format!("/run/test/stream{port}");
        let end = |pod: &str, role: &str, does: &str| {
            let mut command = stage.node(1).command("ip");
            command.args(["netns", "exec", pod, "python3", "/run/test/stream.py", kind, role, does]);
            command.args([&address, &port_word, &file]);
            Process::start(command)
        };
        let database = end("db", "listen", does[1]);
        stage.wait_until("the database listens", |stage| {
            stage.node(1).can(&format!("test -e {file}.listens"))
        });
        let stream = Stream { port, _ends: [end("web", "connect", does[0]), database] };
        stage.wait_until("bytes arrive", |stage| stream.count(stage) > 5);
        stream
    }

    /// The number of received bytes.
    fn count(&self, stage: &Stage) -> u64 {
        let said = stage.node(1).try_sh(&format!("cat /run/test/stream{}", self.port));
        String::from_utf8_lossy(&said.stdout).trim().parse().unwrap_or(0)
    }

    #[track_caller]
    fn assert_flows(&self, stage: &Stage) {
        let before = self.count(stage);
        stage.wait_until(&format!("stream {} goes on", self.port), |stage| self.count(stage) > before + 20);
    }
}

/// Connections from the web to the database. They are open while the policy changes and allows only one of them.
struct Scene {
    stage: Stage,
    /// The web sends, the database sends, and a UDP stream from the web.
    closed: [Stream; 3],
    open: Stream,
}

impl Scene {
    fn new(chain: &str, flags: &[&str]) -> Scene {
        let mut stage = stage_without_agents();
        start_with(&mut stage, chain, flags);
        add_all(&stage);
        stage.node(1).write("/run/test/stream.py", STREAM);
        let closed = [
            Stream::start(&stage, "tcp", 7001, ["send", "count"]),
            Stream::start(&stage, "tcp", 7002, ["count", "send"]),
            Stream::start(&stage, "udp", 7004, ["send", "count"]),
        ];
        let open = Stream::start(&stage, "tcp", OPEN, ["send", "count"]);
        Scene { stage, closed, open }
    }

    fn close(&self) {
        let text = format!("{POLICIES}    ports: [{{port: {OPEN}}}]\n");
        self.stage.node(1).write(&format!("{FOLDER}/shop.yaml"), &text);
        self.stage.wait_until("the policy is enforced", |stage| is_kept_from(stage, "web", "db"));
    }

    /// The numbers of received bytes of the denied connections.
    fn counts(&self) -> Vec<u64> {
        self.closed.iter().map(|stream| stream.count(&self.stage)).collect()
    }

    /// The same after bytes in flight have arrived: the numbers do not change for a second.
    fn stopped(&self) -> Vec<u64> {
        self.stage.wait_until("no more bytes arrive", |_| {
            let before = self.counts();
            std::thread::sleep(Duration::from_secs(1));
            before == self.counts()
        });
        self.counts()
    }
}

#[test]
fn established_connections_outlive_the_policy_that_allowed_them() {
    let scene = Scene::new("bridge", &[]);
    scene.close();
    scene.closed.iter().chain([&scene.open]).for_each(|stream| stream.assert_flows(&scene.stage));
    assert_eq!(metric(&scene.stage, "closed_connections_total", &[]), Some(0));
}

#[test]
fn policy_cut_closes_only_connections_that_are_no_longer_allowed() {
    for chain in ["bridge", "ptp"] {
        let scene = Scene::new(chain, &["--policy-cut"]);
        let stage = &scene.stage;
        assert_eq!(metric(stage, "closed_connections_total", &[]), Some(0), "nothing is forbidden yet");
        let kept = format!("conntrack -L -p tcp --dport {OPEN} -o id 2>/dev/null | grep -o 'id=[0-9]*'");
        let entry = stage.node(1).sh(&kept);
        scene.close();
        stage.wait_until("the denied connections are closed", |stage| {
            metric(stage, "closed_connections_total", &[]) >= Some(3)
        });
        let before = scene.stopped();
        scene.open.assert_flows(stage);
        stage.wait_until("packets of closed connections are counted", |stage| {
            dropped(stage, "egress", CUT) > Some(0)
        });
        assert_eq!(before, scene.counts(), "{chain}");
        assert_eq!(stage.node(1).sh(&kept), entry, "{chain}: the kernel never forgot the allowed one");
    }
}
