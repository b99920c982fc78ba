//! Interfaces of one container that map the same port of the node.
//!
//! podman publishes the ports of a container on each of its networks. A port is mapped to one address, that of the
//! interface which was added first. The others are pending: a file of the container lists them, and when the first
//! interface is deleted, the next one gets the port. Only containers whose interfaces map the same port have such a
//! file.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use podwire_cni_plugin::ledger::{self, LedgerFile};
use podwire_cni_plugin::{Command, Context, Finding, Request, Result};
use podwire_kernel::Owner;

use super::check;
use super::config::Conf;

const FOLDER: &str = "/run/podwire/ports";

/// An interface of the container.
#[derive(PartialEq, Eq)]
struct Attached {
    network: String,
    ifname: String,
}

/// The interfaces of a container that are pending for a port, or were.
struct Queue {
    file: PathBuf,
    interfaces: Vec<Attached>,
}

impl Queue {
    /// The queue of the owner's container; `None` if it has none.
    fn find(owner: &Owner) -> io::Result<Option<Queue>> {
        let file = Path::new(FOLDER).join(&*owner.short_names().1);
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let parse = |line: &str| {
            let (network, ifname) = line.split_once('/')?;
            Some(Attached { network: network.into(), ifname: ifname.into() })
        };
        Ok(Some(Queue { file, interfaces: text.lines().filter_map(parse).collect() }))
    }

    fn write(&self) -> io::Result<()> {
        if self.interfaces.is_empty() {
            let removed = fs::remove_file(&self.file);
            // Fails if the folder has other files.
            let _ = fs::remove_dir(FOLDER);
            return match removed {
                // A concurrent GC was faster.
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                other => other,
            };
        }
        let line = |one: &Attached| format!("{}/{}\n", one.network, one.ifname);
        let text: String = self.interfaces.iter().map(line).collect();
        let mut attempts = 0;
        loop {
            podwire_fs::create_state_dir(Path::new(FOLDER))?;
            attempts += 1;
            // Not written atomically: after a crash the list may be short, and CHECK finds the missing port maps.
            match fs::write(&self.file, &text) {
                // The removal of another container's last file removed the folder in between.
                Err(error) if error.kind() == io::ErrorKind::NotFound && attempts < 100 => {}
                other => return other,
            }
        }
    }

    /// Removes interfaces that are no longer in the ledger.
    fn remove_detached(&mut self, container: &str) {
        self.interfaces.retain(|one| ledger_file(container, one).is_some());
    }
}

fn ledger_file(container: &str, interface: &Attached) -> Option<LedgerFile> {
    let found = ledger::find(&Owner::new(&*interface.network, container, &*interface.ifname), "portmap");
    found.filter(|file| !file.entries.is_empty())
}

/// Records that the interface is pending for a port.
pub(super) fn enter(owner: &Owner) -> Result<()> {
    let interface = Attached { network: owner.network.clone(), ifname: owner.ifname.clone() };
    let recorded = Queue::find(owner).and_then(|queue| {
        let file = Path::new(FOLDER).join(&*owner.short_names().1);
        let mut queue = queue.unwrap_or(Queue { file, interfaces: Vec::new() });
        if queue.interfaces.contains(&interface) {
            return Ok(());
        }
        queue.interfaces.push(interface);
        queue.write()
    });
    recorded
        .map_err(failed)
        .doing(|| "record that several interfaces of the pod map the same host port".into())
}

/// Removes the interface from the queue after its port maps were removed, and maps the ports to the pending interfaces.
pub(super) fn leave(req: &Request<'_>) -> Result<()> {
    let owner = req.owner();
    let Some(mut queue) = Queue::find(&owner).map_err(failed)? else { return Ok(()) };
    queue.interfaces.retain(|one| (&one.network, &one.ifname) != (&owner.network, &owner.ifname));
    queue.remove_detached(&owner.container);
    queue.write().map_err(failed)?;
    let files = queue.interfaces.iter().filter_map(|one| ledger_file(&owner.container, one));
    for entry in files.flat_map(|file| file.entries) {
        // A failure must not fail this DEL: CHECK of the pending interface reports it.
        let map_ports = || -> Result<usize> {
            let sibling = entry.request(Command::Check, req.registry)?;
            Finding::repair_all(check::inspect(&sibling, &Conf::read(&sibling)?)?)
        };
        let _ = map_ports();
    }
    Ok(())
}

/// Removes interfaces that are no longer in the ledger from all queues.
pub(super) fn collect() -> Result<()> {
    for file in fs::read_dir(FOLDER).into_iter().flatten().flatten() {
        let container = file.file_name().to_string_lossy().into_owned();
        let Some(mut queue) = Queue::find(&Owner::new("", &*container, "")).map_err(failed)? else {
            continue;
        };
        let count = queue.interfaces.len();
        queue.remove_detached(&container);
        if queue.interfaces.len() < count || count == 0 {
            queue.write().map_err(failed)?;
        }
    }
    Ok(())
}

fn failed(error: io::Error) -> podwire_cni_spec::Error {
    podwire_cni_spec::Error::new(podwire_cni_spec::code::IO, format!("{FOLDER}: {error}"))
}
