//! All assigned addresses of all networks in a data folder, for `podwire cni audit` and migrations.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use podwire_cni_plugin::Result;

use super::entry::{Entry, Holder};
use super::environment::Environment;
use super::store::Store;

/// An assigned address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// The network's name.
    pub network: String,
    /// The address.
    pub ip: IpAddr,
    /// The container.
    pub container: String,
    /// Its interface; entries from before 2019 do not name it.
    pub ifname: Option<String>,
    /// The address's file.
    pub file: PathBuf,
}

/// All assigned addresses of the networks in a data folder. Networks that cannot be read are skipped.
pub fn reservations(folder: &Path) -> Vec<Reservation> {
    let networks = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let folders = networks.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.flat_map(|entry| of_network(&entry.path(), &entry.file_name().to_string_lossy())).collect()
}

fn of_network(folder: &Path, network: &str) -> Vec<Reservation> {
    let Ok(Some(mut store)) = Store::open_existing(folder, &Environment::of_this_node()) else {
        return Vec::new();
    };
    let Ok(entries) = store.scan().map(<[Entry]>::to_vec) else { return Vec::new() };
    store.mark_index_valid();
    let reservation = |entry: Entry| {
        let (container, ifname) = match entry.holder {
            Holder::Interface(owner) => (owner.container, Some(owner.ifname)),
            Holder::Container(container) => (container, None),
            Holder::Empty | Holder::Unknown => return None,
        };
        let file = store.address_path(entry.ip);
        Some(Reservation { network: network.to_owned(), ip: entry.ip, container, ifname, file })
    };
    entries.into_iter().filter_map(reservation).collect()
}

/// Releases the address, if the container still has it.
pub fn release(reservation: &Reservation) -> Result<()> {
    let Some(folder) = reservation.file.parent() else { return Ok(()) };
    let Some(mut store) = Store::open_existing(folder, &Environment::of_this_node())? else { return Ok(()) };
    let mut entries = store.scan()?.to_vec();
    let is_reserved = |entry: &Entry| {
        entry.ip == reservation.ip
            && match &entry.holder {
                Holder::Interface(owner) => {
                    owner.container == reservation.container
                        && reservation.ifname.as_ref() == Some(&owner.ifname)
                }
                Holder::Container(container) => *container == reservation.container,
                Holder::Empty | Holder::Unknown => false,
            }
    };
    if entries.iter().any(is_reserved) {
        store.release(reservation.ip)?;
        entries.retain(|entry| !is_reserved(entry));
    }
    store.replace_index(&entries);
    Ok(())
}
