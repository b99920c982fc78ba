//! The node's connected pods, for others to know: Calico's workload endpoints.
//!
//! A plugin tells of a pod when its cable is there, and is answered when that is noted in a file; the clerk tells the store afterwards, and
//! again until it was told. When the pod goes its file is moved, and the store is told that, too. Files of an earlier boot are of pods that are gone,
//! and so are files of pods whose cable is gone: another program has deleted those, Calico's own plugin for one, while it did the node's work again.

mod guests;
mod interfaces;
mod name;
mod record;
mod refused;
mod telling;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use podwire_agent_ipc::pods::{self, Endpoint};
use podwire_agent_ipc::{pending, Owner};
use podwire_block_ipam::store::Store;
use podwire_block_ipam::Error as Blocks;
use tracing::{error, warn};

pub(crate) use guests::{join, revise_note};
pub(crate) use telling::{publish, withdraw};

use self::interfaces::Interfaces;
use self::refused::Refused;
use crate::Error;

/// The endpoints of a node.
pub(crate) struct Endpoints {
    state: PathBuf,
    boot: String,
    book: Mutex<Book>,
}

#[derive(Default)]
struct Book {
    known: BTreeMap<Owner, Endpoint>,
    /// Of whom the store does not know yet.
    untold: BTreeSet<Owner>,
    has_withdrawals: bool,
}

/// Notes that a pod is gone: its endpoint is to be withdrawn, and its addresses are to be given back.
fn note_gone_pod(state: &Path, gone: &Endpoint) -> Result<(), Error> {
    pods::withdraw(state, gone).map_err(Error::file("note in", pods::endpoints_dir(state)))?;
    pending::release(state, &gone.owner).map_err(Error::file("note in", state))
}

impl Endpoints {
    /// Those of an earlier life. Whether the store knows of them, nobody knows: it is told again. What the gone had is to be given back.
    pub(crate) fn open(state: &Path, boot: &str) -> Result<Endpoints, Error> {
        let folder = pods::endpoints_dir(state);
        for part in [pending::leases_dir(&folder), pending::released_dir(&folder)] {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(&part);
            made.map_err(Error::file("make", part))?;
        }
        let interfaces = Interfaces::here();
        let mut book = Book { has_withdrawals: true, ..Book::default() };
        for (path, read) in pending::read_all::<Endpoint>(&pending::leases_dir(&folder)) {
            match read {
                Ok(endpoint) if endpoint.boot_id == boot && interfaces.may_have(&endpoint) => {
                    book.untold.insert(endpoint.owner.clone());
                    book.known.insert(endpoint.owner.clone(), endpoint);
                }
                Ok(gone) => note_gone_pod(state, &gone)?,
                Err(error) => warn!(file = %path.display(), %error, "an endpoint that cannot be read"),
            }
        }
        Ok(Endpoints { state: state.to_owned(), boot: boot.to_owned(), book: Mutex::new(book) })
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a pod is connected. What its sandbox before had said is over: the store has one word for a pod.
    pub(crate) fn note(&self, endpoint: &Endpoint) -> Result<(), Error> {
        self.enter(&mut self.book(), endpoint)
    }

    fn enter(&self, book: &mut Book, endpoint: &Endpoint) -> Result<(), Error> {
        let endpoint = Endpoint { boot_id: self.boot.clone(), ..endpoint.clone() };
        let folder = pending::leases_dir(&pods::endpoints_dir(&self.state));
        let name = pending::file_name(&endpoint.owner);
        pending::write(&folder, &name, &endpoint)
            .map_err(Error::file("write endpoint", folder.join(name)))?;
        let is_former = |other: &&Endpoint| {
            !endpoint.pod.is_empty()
                && (&other.namespace, &other.pod) == (&endpoint.namespace, &endpoint.pod)
                && other.owner.ifname == endpoint.owner.ifname
                && other.owner != endpoint.owner
        };
        let former: Vec<Owner> =
            book.known.values().filter(is_former).map(|other| other.owner.clone()).collect();
        for owner in former {
            let _ = fs::remove_file(folder.join(pending::file_name(&owner)));
            book.known.remove(&owner);
            book.untold.remove(&owner);
        }
        book.untold.insert(endpoint.owner.clone());
        book.known.insert(endpoint.owner.clone(), endpoint);
        Ok(())
    }

    /// Notes that a pod is gone.
    pub(crate) fn note_gone(&self, gone: &Endpoint) -> Result<(), Error> {
        if self.see_off(gone)? {
            return Ok(());
        }
        let mut book = self.book();
        let folder = pods::endpoints_dir(&self.state);
        pods::withdraw(&self.state, gone).map_err(Error::file("note in", folder))?;
        book.known.remove(&gone.owner);
        book.untold.remove(&gone.owner);
        book.has_withdrawals = true;
        Ok(())
    }

    /// Pods whose cables are gone, since another program has deleted them, are noted as gone.
    pub(crate) fn look_for_cables(&self) -> Result<(), Error> {
        let mut book = self.book();
        // After the book: who stands in it had a cable before.
        let interfaces = Interfaces::here();
        let gone: Vec<Endpoint> =
            book.known.values().filter(|one| !interfaces.may_have(one)).cloned().collect();
        for endpoint in gone {
            note_gone_pod(&self.state, &endpoint)?;
            book.known.remove(&endpoint.owner);
            book.untold.remove(&endpoint.owner);
            book.has_withdrawals = true;
        }
        Ok(())
    }

    /// Those of a network.
    pub(crate) fn of_network(&self, network: &str) -> Vec<Endpoint> {
        self.book().known.values().filter(|one| one.owner.network == network).cloned().collect()
    }

    /// How many the store does not know of yet.
    pub(crate) fn untold(&self) -> usize {
        self.book().untold.len()
    }

    /// Whether the store is to be told anything.
    pub(crate) fn has_news(&self) -> bool {
        let book = self.book();
        book.has_withdrawals || !book.untold.is_empty()
    }

    /// What plugins have left while nobody listened is to be looked at again.
    pub(crate) fn look_again(&self) {
        self.book().has_withdrawals = true;
    }

    /// Tells the store of the pods that it does not know of: of one, and of more until there is something more important to do. A record that makes no sense is
    /// told, and stops nobody.
    pub(crate) fn tell(
        &self,
        store: &dyn Store,
        node: &str,
        is_needed_elsewhere: impl Fn() -> bool,
    ) -> Result<(), Blocks> {
        let untold: Vec<Endpoint> = {
            let book = self.book();
            book.untold.iter().filter_map(|owner| book.known.get(owner)).cloned().collect()
        };
        let mut refused = Refused::default();
        let mut told = 0;
        for endpoint in untold {
            if (told > 0 || refused.is_long()) && is_needed_elsewhere() {
                break;
            }
            let done = publish(store, node, &endpoint);
            if let Err(error) = self.report(&endpoint, done) {
                refused.note(error)?;
                continue;
            }
            told += 1;
            let mut book = self.book();
            if book.known.get(&endpoint.owner) == Some(&endpoint) {
                book.untold.remove(&endpoint.owner);
            }
        }
        refused.told()
    }

    /// Tells the store of the pods that are gone.
    pub(crate) fn tell_of_the_gone(&self, store: &dyn Store, node: &str) -> Result<(), Blocks> {
        if !std::mem::take(&mut self.book().has_withdrawals) {
            return Ok(());
        }
        let folder = pending::released_dir(&pods::endpoints_dir(&self.state));
        let mut refused = Refused::default();
        for (path, gone) in pending::read_all::<Endpoint>(&folder) {
            let Ok(gone) = gone else { continue };
            self.forget_moved(&gone.owner);
            match self.see_off_noted(&gone, &path) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => {
                    warn!(%error, owner = %gone.owner, "a network has left a container, which cannot be noted");
                    continue;
                }
            }
            let done = withdraw(store, node, &gone);
            match self.report(&gone, done) {
                Ok(()) => drop(fs::remove_file(path)),
                Err(error) => refused.note(error)?,
            }
        }
        refused.told()
    }

    /// A plugin that found nobody at the door has moved an endpoint by itself: then nobody is to be told of it any more.
    fn forget_moved(&self, owner: &Owner) {
        let mut book = self.book();
        let file = pending::leases_dir(&pods::endpoints_dir(&self.state)).join(pending::file_name(owner));
        if !file.exists() {
            book.known.remove(owner);
            book.untold.remove(owner);
        }
    }

    fn report(&self, endpoint: &Endpoint, done: Result<(), Blocks>) -> Result<(), Blocks> {
        match done {
            Err(error @ Blocks::Malformed { .. }) => {
                error!(%error, owner = %endpoint.owner, hint = error.hint(), "an endpoint is left alone");
                Ok(())
            }
            done => done,
        }
    }
}
