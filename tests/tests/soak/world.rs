//! The shared state of the workers of a soak: valid attachments, addresses, locks, and the journal.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, RwLock};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::call::{Call, Output};
use crate::networks::Network;
use crate::random::Random;

/// The number of failures that are shown.
const MAX_FAILURES: usize = 8;
/// The number of journal lines that are shown for an attachment.
const PAST: usize = 24;

/// (container, ifname)
type Name = (String, String);

/// The shared state.
#[derive(Debug)]
pub struct World {
    /// The networks whose plugins are installed.
    pub networks: Vec<&'static Network>,
    /// The directories of plugins: Podwire's, and in a mixed soak Go's.
    pub folders: Vec<String>,
    /// For each network: ADD, DEL and CHECK hold it shared, a GC that runs alone holds it exclusively.
    pub locks: Vec<RwLock<()>>,
    /// For each network: an ADD holds it shared while it becomes valid, GC holds it exclusively.
    pub gc_locks: Vec<RwLock<()>>,
    valid: Mutex<BTreeMap<usize, BTreeSet<Name>>>,
    addresses: Mutex<BTreeMap<(usize, String), Name>>,
    journal: Mutex<Vec<String>>,
    failures: Mutex<Vec<String>>,
    /// The mean time of each verb of each plugin of Podwire, in microseconds.
    paces: Mutex<BTreeMap<String, usize>>,
}

impl World {
    /// The state before the first operation.
    pub fn new(networks: Vec<&'static Network>, folders: Vec<String>) -> World {
        World {
            locks: networks.iter().map(|_| RwLock::new(())).collect(),
            gc_locks: networks.iter().map(|_| RwLock::new(())).collect(),
            networks,
            folders,
            valid: Mutex::default(),
            addresses: Mutex::default(),
            journal: Mutex::default(),
            failures: Mutex::default(),
            paces: Mutex::default(),
        }
    }

    /// Adds an attachment to the valid ones, before its ADD: GC must not remove it.
    pub fn add_valid(&self, network: usize, container: &str, ifname: &str) {
        let mut valid = self.valid.lock().expect("lock");
        valid.entry(network).or_default().insert((container.into(), ifname.into()));
    }

    /// Removes an attachment from the valid ones: GC may remove what is left of it.
    pub fn remove_valid(&self, network: usize, container: &str, ifname: &str) {
        let mut valid = self.valid.lock().expect("lock");
        valid.entry(network).or_default().remove(&(container.into(), ifname.into()));
    }

    /// The valid attachments of a network.
    pub fn valid(&self, network: usize) -> BTreeSet<Name> {
        self.valid.lock().expect("lock").get(&network).cloned().unwrap_or_default()
    }

    /// Records the addresses of an attachment. It is a failure if another attachment has one of them.
    pub fn claim(&self, network: usize, (container, ifname): (&str, &str), result: &Value) {
        for ip in result["ips"].as_array().into_iter().flatten() {
            let text = ip["address"].as_str().and_then(|text| text.split('/').next()).unwrap_or_default();
            let key = (network, text.to_string());
            // Every pod has the loopback addresses.
            if text.starts_with("127.") || text == "::1" {
                continue;
            }
            let before = self.addresses.lock().expect("lock").insert(key, (container.into(), ifname.into()));
            if let Some((holder, at)) = before {
                self.record_failure(
                    container,
                    &format!("{text} was assigned to {container}/{ifname}, but {holder}/{at} has it"),
                );
                self.record_failure(&holder, "the holder");
            }
        }
    }

    /// Removes the addresses of an attachment: others may get them.
    pub fn release(&self, network: usize, container: &str, ifname: &str) {
        let mut addresses = self.addresses.lock().expect("lock");
        addresses.retain(|(one, _), name| *one != network || (name.0 != container || name.1 != ifname));
    }

    /// Removes the addresses of all attachments that are not valid.
    pub fn release_all_but(&self, network: usize, valid: &BTreeSet<Name>) {
        self.addresses.lock().expect("lock").retain(|(one, _), name| *one != network || valid.contains(name));
    }

    /// Adds a line to the journal.
    pub fn note(&self, line: String) {
        self.journal.lock().expect("lock").push(line);
    }

    /// All lines of the journal.
    pub fn journal(&self) -> Vec<String> {
        self.journal.lock().expect("lock").clone()
    }

    /// Records a failure, with the container's lines of the journal.
    pub fn record_failure(&self, container: &str, what: &str) {
        let past = past(&self.journal.lock().expect("lock"), container);
        self.failures.lock().expect("lock").push(format!("{what}\n{past}"));
    }

    /// The recorded failures as text, if there are any.
    pub fn failures(&self) -> Option<String> {
        let all = self.failures.lock().expect("lock");
        let shown = all.iter().take(MAX_FAILURES).cloned().collect::<Vec<_>>().join("\n");
        (!all.is_empty()).then(|| format!("{} failures\n{shown}", all.len()))
    }

    /// Runs a call and updates the mean time of its verb and plugin.
    pub fn timed(&self, call: &Call<'_>) -> Output {
        let start = Instant::now();
        let output = call.run();
        let took = start.elapsed().as_micros() as usize;
        let mut paces = self.paces.lock().expect("lock");
        let pace = paces.entry(call.what()).or_insert(took);
        *pace = (*pace * 15 + took) / 16;
        output
    }

    /// A random delay that is shorter than such a call usually takes.
    pub fn moment(&self, call: &Call<'_>, random: &mut Random) -> Duration {
        let pace = self.paces.lock().expect("lock").get(&call.what()).copied().unwrap_or(1000);
        Duration::from_micros(random.below(pace) as u64)
    }
}

/// The last lines of the journal that concern a container, and the GCs of its networks.
pub fn past(journal: &[String], container: &str) -> String {
    let of_container = |line: &&String| line.split([' ', '/']).any(|word| word == container);
    let networks: BTreeSet<&str> = journal
        .iter()
        .filter(of_container)
        .filter_map(|line| line.split(' ').nth(2)?.split('/').next())
        .collect();
    let of_gc = |line: &&String| {
        let mut words = line.split(' ').skip(1);
        words.next() == Some("GC") && words.next().is_some_and(|network| networks.contains(network))
    };
    let lines: Vec<_> = journal.iter().filter(|line| of_container(line) || of_gc(line)).collect();
    lines[lines.len().saturating_sub(PAST)..].iter().map(|line| format!("    {line}\n")).collect()
}
