//! Several processes share one SQLite file, and are killed in the middle of what they do: no two nodes ever have the same
//! range, and what a process was told that it has, it has.
//!
//! This file is both the test and the processes that it starts, so it has a `main` of its own instead of the harness's.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use podwire_subnets::{find_overlaps, Backend, Embedded, Error, Registration, Underlay};

const NETWORK: &str =
    r#"{"Network": "10.7.0.0/16", "SubnetLen": 26, "EnableIPv6": true, "IPv6Network": "fd00:7::/48"}"#;
const CROWD: usize = 6;
const KILLS: u32 = 60;

fn registration(name: String) -> Registration {
    let underlay = Underlay { v4: Some([192, 0, 2, 1].into()), v6: None };
    Registration { name, underlay, backend: Backend::named("host-gw"), ..Registration::default() }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// A process of the crowd: takes pod_cidrs, gives every third back, and says on stdout what it knows to be done. The line before a
/// release says that it is about to happen: a process killed in between may or may not have done it.
fn member(path: &Path, member: &str) {
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
                        writeln!(stdout, "gives {name} {range}").unwrap();
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

/// What the crowd says, line by line, with the file that it works on.
struct Crowd {
    path: PathBuf,
    lines: mpsc::Receiver<String>,
    sender: mpsc::Sender<String>,
    members: Vec<Child>,
    next: usize,
}

impl Crowd {
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

impl Drop for Crowd {
    fn drop(&mut self) {
        for child in &mut self.members {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn no_two_processes_get_the_same_range_though_they_are_killed(folder: &Path) {
    let path = folder.join("cluster.db");
    runtime().block_on(async { Embedded::open(&path).await.unwrap().set_network(NETWORK).await.unwrap() });
    let (sender, lines) = mpsc::channel();
    let mut crowd = Crowd { path: path.clone(), lines, sender, members: Vec::new(), next: 0 };
    for _ in 0..CROWD {
        let child = crowd.start_one();
        crowd.members.push(child);
    }
    // What every line says, kept in order: who has what, and what is in doubt.
    let (mut has, mut doubtful, mut said) = (BTreeMap::new(), BTreeMap::new(), 0);
    for kill in 0..KILLS {
        for _ in 0..5 {
            let line =
                crowd.lines.recv_timeout(Duration::from_secs(60)).expect("somebody gets something done");
            take(&line, &mut has, &mut doubtful);
            said += 1;
        }
        // Somewhere in what it does next, each time somewhere else.
        std::thread::sleep(Duration::from_micros(u64::from(kill) * 7_919 % 20_011));
        let mut victim = crowd.members.remove(0);
        victim.kill().unwrap();
        victim.wait().unwrap();
        let child = crowd.start_one();
        crowd.members.push(child);
    }
    for mut child in std::mem::take(&mut crowd.members) {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    // Those who listen to them end with them; then nobody is left who could send.
    crowd.sender = mpsc::channel().0;
    for line in crowd.lines.iter() {
        take(&line, &mut has, &mut doubtful);
        said += 1;
    }

    let (nodes, _) = runtime().block_on(async { Embedded::open(&path).await.unwrap().watch().known().await });
    assert_eq!(find_overlaps(&nodes), Vec::new());
    let there: BTreeMap<String, String> =
        nodes.iter().map(|node| (node.name.clone(), node.pod_cidrs.v4.unwrap().to_string())).collect();
    for (name, range) in &has {
        assert_eq!(there.get(name), Some(range), "{name} was told {range}");
    }
    // What nobody was told of was committed by a process that died before it could speak, or given back likewise.
    let unspoken =
        there.keys().filter(|name| !has.contains_key(*name) && !doubtful.contains_key(*name)).count();
    assert!(unspoken <= KILLS as usize + CROWD, "{unspoken} pod_cidrs of nobody after {KILLS} kills");
    let check: String = rusqlite::Connection::open(&path)
        .unwrap()
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .unwrap();
    assert_eq!(check, "ok");
    println!("{said} lines, {KILLS} kills, {} pod_cidrs, {unspoken} of them unspoken", there.len());
}

fn take(line: &str, has: &mut BTreeMap<String, String>, doubtful: &mut BTreeMap<String, String>) {
    let words: Vec<&str> = line.split(' ').collect();
    match words[..] {
        ["has", name, range] => {
            has.insert(name.into(), range.into());
        }
        ["gives", name, range] => {
            has.remove(name);
            doubtful.insert(name.into(), range.into());
        }
        // A line that was cut off by a kill, or that the pool is full.
        _ => {}
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, verb, path, name] = &arguments[..] {
        if verb == "member" {
            return member(Path::new(path), name);
        }
    }
    let folder = std::env::temp_dir().join(format!("podwire-processes-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let test =
        std::panic::catch_unwind(|| no_two_processes_get_the_same_range_though_they_are_killed(&folder));
    let _ = std::fs::remove_dir_all(&folder);
    if test.is_err() {
        std::process::exit(101);
    }
    println!("test no_two_processes_get_the_same_range_though_they_are_killed ... ok");
}
