//! The node of a soak: made, looked at, given to the workers, looked at again.

use std::io::Write;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use podwire_tests::{differences, Chain, Node};

use crate::networks::{possible, Network};
use crate::worker::{gc, Worker};
use crate::world::{past, World};

const WORKERS: usize = 16;
/// What the kernel and detached children clear away takes a while on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Set for the process on the node.
const INSIDE: &str = "PODWIRE_SOAK_INSIDE";
const JOURNAL: &str = "/run/test/journal";

/// One soak at a time: each keeps every core busy.
static TURN: Mutex<()> = Mutex::new(());

/// Runs `operations` with the plugins of `folders` (ours first) on a node of their own. `test` is the test that does so:
/// it is executed once more on the node, so that a call of a plugin is a call of a plugin and nothing else.
pub fn soak(test: &str, operations: usize, folders: &[&str]) {
    let networks = possible(folders);
    if let Ok(seed) = std::env::var(INSIDE) {
        return work(networks, seed.parse().expect("a seed"), operations, folders);
    }
    let _turn = TURN.lock();
    let asked = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
    let seed = asked("PODWIRE_SOAK_SEED").unwrap_or_else(now);
    let node = prepared(&networks, folders);
    let before = state(&node, &networks);
    say(&format!("{test}: seed {seed}"));
    let start = Instant::now();
    let program = std::env::current_exe().expect("this program");
    let output = node
        .command(&program.display().to_string())
        .args(["--exact", test, "--nocapture", "--test-threads", "1"])
        .env(INSIDE, seed.to_string())
        .env("PODWIRE_SOAK_OPS", asked("PODWIRE_SOAK_OPS").unwrap_or(operations as u64).to_string())
        .output()
        .expect("nsenter");
    let printed = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "seed {seed}\n{printed}");
    say(&format!("{test}: {} s{}", start.elapsed().as_secs(), summary(&printed)));
    let left = left(&node, &networks, &before);
    assert!(left.is_empty(), "seed {seed}\n{}", told(&node, &left));
}

/// Not by println: the test runner would keep it to itself.
fn say(text: &str) {
    drop(writeln!(std::io::stderr(), "{text}"));
}

/// What the workers told of themselves.
fn summary(printed: &str) -> String {
    printed.lines().filter_map(|line| line.strip_prefix("soak: ")).map(|line| format!(", {line}")).collect()
}

/// A node with what the networks need. If Go's plugins take part, then with what those leave for ever: chains of
/// iptables that all pods share.
fn prepared(networks: &[&Network], folders: &[&str]) -> Node {
    let node = Node::new();
    node.remove(&node.pod("first"));
    for network in networks {
        node.sh(network.before);
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

/// Everything that could be left behind: what the bench knows of, the node's addresses, and folders of the ledger.
/// Without what stays of the networks by design.
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
    let stays = |line: &str| networks.iter().any(|network| network.stays.contains(&line));
    lines.lines().filter(|line| !stays(line)).map(|line| format!("{line}\n")).collect()
}

/// What is there that was not, when the dust has settled.
fn left(node: &Node, networks: &[&Network], before: &str) -> String {
    let start = Instant::now();
    loop {
        let left = differences(before, &state(node, networks));
        if left.is_empty() || start.elapsed() > PATIENCE {
            return left;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// What is left, and what was done to the containers that it is of.
fn told(node: &Node, left: &str) -> String {
    let journal: Vec<String> = node.sh(&format!("cat {JOURNAL}")).lines().map(str::to_string).collect();
    let mut all = format!("left behind:{left}\n");
    let mut known = Vec::new();
    for line in left.lines() {
        // A link says whose it is by its alias, a file by its name or content, a lease and a cable by what ADD told.
        let words = line.split(' ').filter(|word| word.len() > 3 && *word != "link");
        let script = |word: &str| format!("ip -d link show '{word}' 2>/dev/null; test -f '{word}' && cat '{word}'; true");
        let more: String = words.clone().map(|word| node.sh(&script(word))).collect();
        let told = words.flat_map(|word| journal.iter().rev().find(|line| line.split(' ').any(|one| one == word)));
        let text = format!("{line} {more} {}", told.cloned().collect::<String>());
        for container in text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').filter(|word| is_container(word)) {
            if !known.contains(&container.to_string()) && known.len() < 6 {
                known.push(container.to_string());
                all += &format!("{line}: what concerns {container}\n{}", past(&journal, container));
            }
        }
    }
    all
}

/// Containers of the workers are called `w3-17`.
fn is_container(word: &str) -> bool {
    let number = |text: &str| !text.is_empty() && text.chars().all(|digit| digit.is_ascii_digit());
    word.strip_prefix('w').and_then(|rest| rest.split_once('-')).is_some_and(|(a, b)| number(a) && number(b))
}

/// On the node: all workers at once, and a GC with nothing valid at the end.
fn work(networks: Vec<&'static Network>, seed: u64, operations: usize, folders: &[&str]) {
    let operations =
        std::env::var("PODWIRE_SOAK_OPS").map_or(operations, |text| text.parse().expect("a number"));
    let world = World::new(networks, folders.iter().map(|folder| folder.to_string()).collect());
    std::thread::scope(|scope| {
        for id in 0..WORKERS {
            let world = &world;
            scope.spawn(move || {
                let mut worker = Worker::new(world, seed, id);
                (0..operations.div_ceil(WORKERS)).for_each(|_| worker.step());
                worker.finish();
            });
        }
    });
    for network in 0..world.networks.len() {
        gc(&world, network);
    }
    let journal = world.journal();
    std::fs::write(JOURNAL, journal.join("\n")).expect("write the journal");
    println!("\nsoak: {} operations", journal.len());
    if let Some(complaints) = world.complaints() {
        panic!("{complaints}");
    }
}
