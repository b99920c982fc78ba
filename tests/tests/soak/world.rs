//! The shared state of the workers of a soak: valid attachments, addresses, turns, and the journal.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, RwLock};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::call::{Answer, Call};
use crate::networks::Network;
use crate::random::Random;

/// More would only bury the first.
const COMPLAINTS: usize = 8;
/// The number of journal lines that are shown for an attachment.
const PAST: usize = 24;

/// (container, ifname)
type Name = (String, String);

/// The world.
#[derive(Debug)]
pub struct World {
    /// The networks that can be used.
    pub networks: Vec<&'static Network>,
    /// The folders of plugins: ours, and perhaps Go's.
    pub folders: Vec<String>,
    /// Held by those who work on a network.
    pub turns: Vec<RwLock<()>>,
    /// Held by those who come to a network: a GC knows everybody who is there.
    pub gc_locks: Vec<RwLock<()>>,
    valid: Mutex<BTreeMap<usize, BTreeSet<Name>>>,
    addresses: Mutex<BTreeMap<(usize, String), Name>>,
    journal: Mutex<Vec<String>>,
    complaints: Mutex<Vec<String>>,
    /// How long a verb of a plugin of ours takes, in microseconds.
    paces: Mutex<BTreeMap<String, usize>>,
}

impl World {
    /// A world in which nothing has happened.
    pub fn new(networks: Vec<&'static Network>, folders: Vec<String>) -> World {
        World {
            turns: networks.iter().map(|_| RwLock::new(())).collect(),
            gc_locks: networks.iter().map(|_| RwLock::new(())).collect(),
            networks,
            folders,
            valid: Mutex::default(),
            addresses: Mutex::default(),
            journal: Mutex::default(),
            complaints: Mutex::default(),
            paces: Mutex::default(),
        }
    }

    /// An attachment is about to be made: a GC must leave it alone.
    pub fn admit(&self, network: usize, container: &str, ifname: &str) {
        let mut valid = self.valid.lock().expect("lock");
        valid.entry(network).or_default().insert((container.into(), ifname.into()));
    }

    /// An attachment is none any more: a GC may take what is left of it.
    pub fn dismiss(&self, network: usize, container: &str, ifname: &str) {
        let mut valid = self.valid.lock().expect("lock");
        valid.entry(network).or_default().remove(&(container.into(), ifname.into()));
    }

    /// Everything that is valid in a network.
    pub fn valid(&self, network: usize) -> BTreeSet<Name> {
        self.valid.lock().expect("lock").get(&network).cloned().unwrap_or_default()
    }

    /// Notes that the addresses of a result are this attachment's; complains if another has one.
    pub fn claim(&self, network: usize, (container, ifname): (&str, &str), result: &Value) {
        for ip in result["ips"].as_array().into_iter().flatten() {
            let text = ip["address"].as_str().and_then(|text| text.split('/').next()).unwrap_or_default();
            let key = (network, text.to_string());
            // Every pod has the loopback's own.
            if text.starts_with("127.") || text == "::1" {
                continue;
            }
            let before = self.addresses.lock().expect("lock").insert(key, (container.into(), ifname.into()));
            if let Some((holder, at)) = before {
                self.complain(
                    container,
                    &format!("{text} was given to {container}/{ifname}, and {holder}/{at} has it"),
                );
                self.complain(&holder, "the holder");
            }
        }
    }

    /// The addresses of an attachment may be given to others from now on.
    pub fn release(&self, network: usize, container: &str, ifname: &str) {
        let mut addresses = self.addresses.lock().expect("lock");
        addresses.retain(|(one, _), name| *one != network || (name.0 != container || name.1 != ifname));
    }

    /// So may all those of attachments that are not valid.
    pub fn release_all_but(&self, network: usize, valid: &BTreeSet<Name>) {
        self.addresses.lock().expect("lock").retain(|(one, _), name| *one != network || valid.contains(name));
    }

    /// Writes down what was done.
    pub fn note(&self, line: String) {
        self.journal.lock().expect("lock").push(line);
    }

    /// Everything that was done.
    pub fn journal(&self) -> Vec<String> {
        self.journal.lock().expect("lock").clone()
    }

    /// Something is not as it should be.
    pub fn complain(&self, container: &str, what: &str) {
        let past = past(&self.journal.lock().expect("lock"), container);
        self.complaints.lock().expect("lock").push(format!("{what}\n{past}"));
    }

    /// What is not as it should be, in words.
    pub fn complaints(&self) -> Option<String> {
        let all = self.complaints.lock().expect("lock");
        let reported = all.iter().take(COMPLAINTS).cloned().collect::<Vec<_>>().join("\n");
        (!all.is_empty()).then(|| format!("{} complaints\n{reported}", all.len()))
    }

    /// Runs a call and learns how long such ones take.
    pub fn timed(&self, call: &Call<'_>) -> Answer {
        let start = Instant::now();
        let answer = call.run();
        let took = start.elapsed().as_micros() as usize;
        let mut paces = self.paces.lock().expect("lock");
        let pace = paces.entry(call.what()).or_insert(took);
        *pace = (*pace * 15 + took) / 16;
        answer
    }

    /// A while after which a call of ours may be anywhere.
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
