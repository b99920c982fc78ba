//! Several processes share one SQLite file and are killed at random points. No two nodes ever have the same subnet, and
//! a subnet that a process was assigned stays assigned.
//!
//! This program is both the test and the processes that it starts, so it has its own `main` instead of the test
//! harness.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use podwire_subnets::{find_overlaps, Backend, Embedded, Error, Registration, Underlay};

const NETWORK: &str =
    r#"{"Network": "10.7.0.0/16", "SubnetLen": 26, "EnableIPv6": true, "IPv6Network": "fd00:7::/48"}"#;
const PROCESSES: usize = 6;
const KILLS: u32 = 60;

fn registration(name: String) -> Registration {
    let underlay = Underlay { v4: Some([192, 0, 2, 1].into()), v6: None };
    Registration { name, underlay, backend: Backend::named("host-gw"), ..Registration::default() }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// One process: acquires subnets, releases every third, and prints what is done. It prints a release before it begins:
/// a process that is killed in between may or may not have done it.
fn run_member(path: &Path, member: &str) {
    runtime().block_on(async {
        let store = Embedded::open(path).await.unwrap();
        let mut stdout = std::io::stdout();
        for number in 0.. {
            let name = format!("{member}-{number}");
            match store.acquire(&registration(name.clone())).await {
                Ok(node) => {
                    let range = node.pod_cidrs.v4.unwrap();
                    writeln!(stdout, "has {name} {range}").unwrap();
                    if number % 3 == 2 {
                        writeln!(stdout, "releases {name} {range}").unwrap();
                        store.release(&name).await.unwrap();
                    }
                }
                Err(Error::OutOfSubnets(_)) => {
                    writeln!(stdout, "full {name} -").unwrap();
                    return;
                }
                Err(error) => panic!("{error}"),
            }
        }
    });
}

/// The processes, and the lines that they print.
struct Members {
    path: PathBuf,
    lines: mpsc::Receiver<String>,
    sender: mpsc::Sender<String>,
    children: Vec<Child>,
    next: usize,
}

impl Members {
    fn start_one(&mut self) -> Child {
        let name = format!("m{}", self.next);
        self.next += 1;
        let own = std::env::current_exe().unwrap();
        let mut command = Command::new(own);
        command.arg("member").arg(&self.path).arg(name).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (stdout, sender) = (child.stdout.take().unwrap(), self.sender.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        child
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn killed_processes_never_share_a_subnet(dir: &Path) {
    let path = dir.join("cluster.db");
    runtime().block_on(async { Embedded::open(&path).await.unwrap().set_network(NETWORK).await.unwrap() });
    let (sender, lines) = mpsc::channel();
    let mut members = Members { path: path.clone(), lines, sender, children: Vec::new(), next: 0 };
    for _ in 0..PROCESSES {
        let child = members.start_one();
        members.children.push(child);
    }
    // The subnets that are assigned, and those that may or may not be released.
    let (mut has, mut doubtful, mut lines_read) = (BTreeMap::new(), BTreeMap::new(), 0);
    for kill in 0..KILLS {
        for _ in 0..5 {
            let line = members.lines.recv_timeout(Duration::from_secs(60)).expect("a process makes progress");
            process_line(&line, &mut has, &mut doubtful);
            lines_read += 1;
        }
        // Kills at a different point each time.
        std::thread::sleep(Duration::from_micros(u64::from(kill) * 7_919 % 20_011));
        let mut victim = members.children.remove(0);
        victim.kill().unwrap();
        victim.wait().unwrap();
        let child = members.start_one();
        members.children.push(child);
    }
    for mut child in std::mem::take(&mut members.children) {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    // The reader threads end with the processes. Without this sender, the channel ends too.
    members.sender = mpsc::channel().0;
    for line in members.lines.iter() {
        process_line(&line, &mut has, &mut doubtful);
        lines_read += 1;
    }

    let (nodes, _) = runtime().block_on(async { Embedded::open(&path).await.unwrap().watch().known().await });
    assert_eq!(find_overlaps(&nodes), Vec::new());
    let there: BTreeMap<String, String> =
        nodes.iter().map(|node| (node.name.clone(), node.pod_cidrs.v4.unwrap().to_string())).collect();
    for (name, range) in &has {
        assert_eq!(there.get(name), Some(range), "{name} was assigned {range}");
    }
    // The others were committed by processes that were killed before they could print it.
    let unreported =
        there.keys().filter(|name| !has.contains_key(*name) && !doubtful.contains_key(*name)).count();
    assert!(unreported <= KILLS as usize + PROCESSES, "{unreported} unreported subnets after {KILLS} kills");
    let check: String = rusqlite::Connection::open(&path)
        .unwrap()
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .unwrap();
    assert_eq!(check, "ok");
    println!("{lines_read} lines, {KILLS} kills, {} subnets, {unreported} of them unreported", there.len());
}

fn process_line(line: &str, has: &mut BTreeMap<String, String>, doubtful: &mut BTreeMap<String, String>) {
    let words: Vec<&str> = line.split(' ').collect();
    match words[..] {
        ["has", name, range] => {
            has.insert(name.into(), range.into());
        }
        ["releases", name, range] => {
            has.remove(name);
            doubtful.insert(name.into(), range.into());
        }
        // A line that a kill cut off, or a full pool.
        _ => {}
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, verb, path, name] = &arguments[..] {
        if verb == "member" {
            return run_member(Path::new(path), name);
        }
    }
    let dir = std::env::temp_dir().join(format!("podwire-processes-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let test = std::panic::catch_unwind(|| killed_processes_never_share_a_subnet(&dir));
    let _ = std::fs::remove_dir_all(&dir);
    if test.is_err() {
        std::process::exit(101);
    }
    println!("test killed_processes_never_share_a_subnet ... ok");
}
