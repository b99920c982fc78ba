//! Interfaces of one container that want the same port of the node.
//!
//! podman publishes the ports of a container on each of its networks. A port leads to one address: that of the interface
//! which was there first. The others wait, in a file of the container's, and when the first one goes the next takes over.
//! Only a container whose interfaces want the same port has such a file.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use podwire_cni_plugin::ledger::{self, Account};
use podwire_cni_plugin::{Command, Context, Finding, Request, Result};
use podwire_kernel::Owner;

use super::{check, Conf};

const FOLDER: &str = "/run/podwire/ports";

/// The interfaces of a container that wait, or have waited.
struct Queue {
    file: PathBuf,
    /// Network and interface of each.
    places: Vec<(String, String)>,
}

impl Queue {
    /// That of the owner's container; `None` if nobody ever waited.
    fn find(owner: &Owner) -> io::Result<Option<Queue>> {
        let file = Path::new(FOLDER).join(&*owner.short_names().1);
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let place =
            |line: &str| line.split_once('/').map(|(network, ifname)| (network.into(), ifname.into()));
        Ok(Some(Queue { file, places: text.lines().filter_map(place).collect() }))
    }

    fn write(&self) -> io::Result<()> {
        if self.places.is_empty() {
            let removed = fs::remove_file(&self.file);
            // Others may be in the folder: then it stays.
            let _ = fs::remove_dir(FOLDER);
            return match removed {
                // A GC was faster.
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                other => other,
            };
        }
        let text: String =
            self.places.iter().map(|(network, ifname)| format!("{network}/{ifname}\n")).collect();
        let mut tries = 0;
        loop {
            fs::create_dir_all(FOLDER)?;
            tries += 1;
            // Torn by a crash, it tells of fewer: what they lack is then seen by CHECK.
            match fs::write(&self.file, &text) {
                // The folder has gone in between, with another container's last file.
                Err(error) if error.kind() == io::ErrorKind::NotFound && tries < 100 => {}
                other => return other,
            }
        }
    }

    /// Strikes out whoever has no account any more.
    fn strike_out_the_gone(&mut self, container: &str) {
        self.places.retain(|place| account(container, place).is_some());
    }
}

fn account(container: &str, (network, ifname): &(String, String)) -> Option<Account> {
    let found = ledger::find(&Owner::new(network, container, ifname), "portmap");
    found.filter(|account| !account.entries.is_empty())
}

/// Notes that the interface waits for a port.
pub(super) fn enter(owner: &Owner) -> Result<()> {
    let place = (owner.network.clone(), owner.ifname.clone());
    let noted = Queue::find(owner).and_then(|queue| {
        let file = Path::new(FOLDER).join(&*owner.short_names().1);
        let mut queue = queue.unwrap_or(Queue { file, places: Vec::new() });
        if queue.places.contains(&place) {
            return Ok(());
        }
        queue.places.push(place);
        queue.write()
    });
    noted.map_err(failed).doing(|| "note that the pod has several interfaces with the same host port".into())
}

/// Strikes the interface out, whose port maps are gone; those that waited for them take over.
pub(super) fn leave(req: &Request<'_>) -> Result<()> {
    let owner = req.owner();
    let Some(mut queue) = Queue::find(&owner).map_err(failed)? else { return Ok(()) };
    let is_self = |(network, ifname): &(String, String)| (network, ifname) == (&owner.network, &owner.ifname);
    queue.places.retain(|place| !is_self(place));
    queue.strike_out_the_gone(&owner.container);
    queue.write().map_err(failed)?;
    let accounts = queue.places.iter().filter_map(|place| account(&owner.container, place));
    for entry in accounts.flat_map(|account| account.entries) {
        // A port that cannot be taken over is what CHECK will tell of; it is no reason to keep this interface.
        let taken_over = || -> Result<usize> {
            let sibling = entry.request(Command::Check, req.registry)?;
            Finding::repair_all(check::inspect(&sibling, &Conf::read(&sibling)?)?)
        };
        let _ = taken_over();
    }
    Ok(())
}

/// Removes what tells of nobody any more.
pub(super) fn collect() -> Result<()> {
    for file in fs::read_dir(FOLDER).into_iter().flatten().flatten() {
        let container = file.file_name().to_string_lossy().into_owned();
        let Some(mut queue) = Queue::find(&Owner::new("", &*container, "")).map_err(failed)? else {
            continue;
        };
        let all = queue.places.len();
        queue.strike_out_the_gone(&container);
        if queue.places.len() < all || all == 0 {
            queue.write().map_err(failed)?;
        }
    }
    Ok(())
}

fn failed(error: io::Error) -> podwire_cni_spec::Error {
    podwire_cni_spec::Error::new(podwire_cni_spec::code::IO, format!("{FOLDER}: {error}"))
}
