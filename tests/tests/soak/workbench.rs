//! The node of a soak: prepared, inspected, used by the workers, inspected again.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use podwire_tests::{differences, Chain, Node};

use crate::networks::{possible, Network};
use crate::worker::Worker;
use crate::world::{past, World};

const WORKERS: usize = 16;
/// The kernel and detached children clean up after DEL. This takes long on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Set for the process on the node.
const INSIDE: &str = "PODWIRE_SOAK_INSIDE";
const JOURNAL: &str = "/run/test/journal";

/// One soak at a time: each keeps every core busy.
static TURN: Mutex<()> = Mutex::new(());

/// Runs `operations` with the plugins of `folders` (Podwire's first) on a separate node. `test` is the name of the
/// calling test: this function executes it again on the node, so that a plugin call needs no other program.
pub fn soak(test: &str, operations: usize, folders: &[&str]) {
    let networks = possible(folders);
    if let Ok(seed) = std::env::var(INSIDE) {
        return work(networks, seed.parse().expect("a seed"), operations, folders);
    }
    let _lock = TURN.lock();
    let variable = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
    let seed = variable("PODWIRE_SOAK_SEED").unwrap_or_else(now);
    let node = prepared(&networks, folders);
    let before = state(&node, &networks);
    print(&format!("{test}: seed {seed}"));
    execute(&node, test, seed, variable("PODWIRE_SOAK_OPS").unwrap_or(operations as u64));
    let journal: Vec<String> = node.sh(&format!("cat {JOURNAL}")).lines().map(str::to_string).collect();
    // Before GC, only abandoned attachments may have left something: DEL removes everything.
    if let [_] = folders {
        let is_allowed = |line: &str| {
            let owners = owners(&node, &journal, line);
            let abandoned = |one: &String| journal.iter().any(|line| is_abandoned(line, one));
            is_for_gc(&networks, line) || (!owners.is_empty() && owners.iter().all(abandoned))
        };
        let left = left(&node, &networks, &before, is_allowed);
        assert!(left.is_empty(), "seed {seed}, before GC\n{}", report(&node, &journal, &left));
    }
    for network in &networks {
        Chain::new(folders[0], network.name, &(network.plugins)(0)).gc(&node, &[]);
    }
    let left = left(&node, &networks, &before, |_| false);
    assert!(left.is_empty(), "seed {seed}\n{}", report(&node, &journal, &left));
}

/// Executes this test on the node.
fn execute(node: &Node, test: &str, seed: u64, operations: u64) {
    let start = Instant::now();
    let program = std::env::current_exe().expect("this program");
    let output = node
        .command(&program.display().to_string())
        .args(["--exact", test, "--nocapture", "--test-threads", "1"])
        .env(INSIDE, seed.to_string())
        .env("PODWIRE_SOAK_OPS", operations.to_string())
        .output()
        .expect("nsenter");
    let printed = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "seed {seed}\n{printed}");
    print(&format!("{test}: {} s{}", start.elapsed().as_secs(), summary(&printed)));
}

/// Whether GC removes an object that has no single owner: all pods of a network share it, or it is the lock of a plugin
/// that was killed in a pod which no longer exists.
fn is_for_gc(networks: &[&Network], line: &str) -> bool {
    let is_of = |name: &str| {
        line.ends_with(&format!("/ledger/{name}")) || line.contains(&format!("\"comment\":\"{name}\""))
    };
    line.starts_with("+ /run/podwire/sbr/") || networks.iter().any(|network| is_of(network.name))
}

/// Whether the line of the journal says that no DEL was sent for a container.
fn is_abandoned(line: &str, container: &str) -> bool {
    line.strip_suffix(container).is_some_and(|rest| rest.ends_with(" abandons "))
}

/// Not println: the test runner captures it.
fn print(text: &str) {
    drop(writeln!(std::io::stderr(), "{text}"));
}

/// The number of operations by verb and outcome.
fn counted(journal: &[String]) -> String {
    let mut counts = BTreeMap::new();
    for line in journal {
        let verb = line.split(' ').nth(1).unwrap_or_default();
        let end = match line.split_once(": ").map_or("", |(_, result)| result) {
            "killed" => " killed",
            result if result.starts_with("status") => " failed",
            _ => "",
        };
        *counts.entry(format!("{verb}{end}")).or_insert(0) += 1;
    }
    counts.iter().map(|(what, count)| format!("{count} {what}")).collect::<Vec<_>>().join(", ")
}

/// The reports of the workers.
fn summary(printed: &str) -> String {
    printed.lines().filter_map(|line| line.strip_prefix("soak: ")).map(|line| format!(", {line}")).collect()
}

/// A node with what the networks need. If Go's plugins take part, the node also has what they never remove: the iptables
/// chains that all pods share.
fn prepared(networks: &[&Network], folders: &[&str]) -> Node {
    let node = Node::new();
    node.remove(&node.pod("first"));
    for network in networks {
        node.sh(network.setup);
    }
    for folder in folders.iter().skip(1) {
        for network in networks {
            let pod = node.pod("before");
            let chain = Chain::new(folder, network.name, &(network.plugins)(0));
            let result = chain.add(&node, &pod);
            chain.del(&node, &pod, Some(&result));
            node.remove(&pod);
        }
    }
    node
}

/// Everything that could be left behind: the node's leftovers, its addresses, and the directories of the ledger. What
/// stays of the networks by design is not included.
fn state(node: &Node, networks: &[&Network]) -> String {
    let mut lines = node.leftovers();
    for link in node.json("ip -j address").as_array().into_iter().flatten() {
        for one in link["addr_info"].as_array().into_iter().flatten().filter(|one| one["scope"] == "global") {
            let text = |field: &str| one[field].as_str().unwrap_or_default().to_string();
            lines += &format!(
                "address {} {}/{}\n",
                link["ifname"].as_str().unwrap_or_default(),
                text("local"),
                one["prefixlen"]
            );
        }
    }
    lines += &node.sh("find /run/podwire/ledger -mindepth 1 -type d 2>/dev/null || true");
    let is_permanent = |line: &str| networks.iter().any(|network| network.permanent.contains(&line));
    lines.lines().filter(|line| !is_permanent(line)).map(|line| format!("{line}\n")).collect()
}

/// Waits until nothing is left behind except what is allowed. Returns what is left at the timeout.
fn left(node: &Node, networks: &[&Network], before: &str, is_allowed: impl Fn(&str) -> bool) -> String {
    let start = Instant::now();
    loop {
        let found = differences(before, &state(node, networks));
        let left: String = found
            .lines()
            .filter(|line| !line.is_empty() && !is_allowed(line))
            .map(|line| format!("{line}\n"))
            .collect();
        if left.is_empty() || start.elapsed() > TIMEOUT {
            return left;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// The leftovers, with the journals of the containers that own them.
fn report(node: &Node, journal: &[String], left: &str) -> String {
    let mut all = format!("left behind:\n{left}");
    let mut known = BTreeSet::new();
    for line in left.lines() {
        for container in owners(node, journal, line) {
            if known.len() < 6 && known.insert(container.clone()) {
                all += &format!("{line}: the journal of {container}\n{}", past(journal, &container));
            }
        }
    }
    all
}

/// The containers that own a leftover object: by a link's alias, by a file's name or content, otherwise by the results
/// of ADDs.
fn owners(node: &Node, journal: &[String], line: &str) -> BTreeSet<String> {
    let direct = containers(line);
    if !direct.is_empty() {
        return direct;
    }
    let words: Vec<&str> = line.split(' ').filter(|word| word.len() > 3).collect();
    let show =
        |word: &&str| format!("ip -d link show '{word}' 2>/dev/null; test -f '{word}' && cat '{word}'; true");
    let found = containers(&node.sh(&words.iter().map(show).collect::<Vec<_>>().join("\n")));
    if !found.is_empty() {
        return found;
    }
    let mentioned =
        |word: &&str| journal.iter().rev().find(|line| line.split(' ').any(|one| one == *word)).cloned();
    containers(&words.iter().filter_map(mentioned).collect::<Vec<_>>().join("\n"))
}

fn containers(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    words.filter(|word| is_container(word)).map(str::to_string).collect()
}

/// Containers of the workers are called `w3-17`.
fn is_container(word: &str) -> bool {
    let number = |text: &str| !text.is_empty() && text.chars().all(|digit| digit.is_ascii_digit());
    word.strip_prefix('w').and_then(|rest| rest.split_once('-')).is_some_and(|(a, b)| number(a) && number(b))
}

/// Runs all workers at once, on the node.
fn work(networks: Vec<&'static Network>, seed: u64, operations: usize, folders: &[&str]) {
    let operations =
        std::env::var("PODWIRE_SOAK_OPS").map_or(operations, |text| text.parse().expect("a number"));
    let world = World::new(networks, folders.iter().map(|folder| folder.to_string()).collect());
    std::thread::scope(|scope| {
        for id in 0..WORKERS {
            let world = &world;
            scope.spawn(move || {
                let mut worker = Worker::new(world, seed, id);
                let steps = operations.div_ceil(WORKERS);
                // In the second part no GC hides what a DEL leaves behind.
                (0..steps).for_each(|step| worker.step(step < steps / 2));
                worker.finish();
            });
        }
    });
    let journal = world.journal();
    std::fs::write(JOURNAL, journal.join("\n")).expect("write the journal");
    println!("\nsoak: {}", counted(&journal));
    if let Some(failures) = world.failures() {
        panic!("{failures}");
    }
}
