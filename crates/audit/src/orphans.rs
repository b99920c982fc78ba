//! Objects without a known owner: links, firewall elements, chains of Go plugins, addresses, files.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use podwire_cni_plugin::{Context, Error, Result};
use podwire_kernel::firewall::inventory::{self, OwnedObject};
use podwire_kernel::firewall::legacy;
use podwire_kernel::rt::link::{self, Link};
use podwire_kernel::{Host, Owner};
use podwire_netlink::Socket;
use podwire_plugins::{flannel, host_local, tuning};

use crate::inventory::{is_settled, Inventory};
use crate::{Fault, Location, Node};

/// The result of `read` in nf_tables; empty if the kernel has none.
fn in_firewall<T: Default>(read: impl FnOnce(&mut Socket) -> podwire_kernel::Result<T>) -> Result<T> {
    Ok(Host::here()?.find_nft()?.map_or_else(|| Ok(T::default()), read)?)
}

/// The kernel objects that carry an owner.
pub(crate) struct KernelState {
    links: Result<Vec<Link>>,
    elements: Result<Vec<OwnedObject>>,
    /// Network and container of iptables chains that Go plugins made.
    chains: Result<HashSet<(String, String)>>,
}

impl KernelState {
    pub(crate) fn read() -> KernelState {
        KernelState {
            links: Host::here().and_then(|mut node| Ok(link::list(&mut node.route)?)).map_err(Error::from),
            elements: in_firewall(inventory::owned_objects),
            chains: in_firewall(legacy::containers),
        }
    }

    /// The objects that were there in an earlier state too. What could not be read then is dropped.
    pub(crate) fn also_in(mut self, earlier: &KernelState) -> KernelState {
        if let Ok(links) = &mut self.links {
            let seen = earlier.links.iter().flatten().map(|link| (link.index, &link.alias));
            let seen: HashSet<_> = seen.collect();
            links.retain(|link| seen.contains(&(link.index, &link.alias)));
        }
        if let Ok(elements) = &mut self.elements {
            let seen = earlier.elements.iter().flatten().map(|one| (&one.comment, one.feature));
            let seen: HashSet<_> = seen.collect();
            elements.retain(|one| seen.contains(&(&one.comment, one.feature)));
        }
        if let Ok(chains) = &mut self.chains {
            chains.retain(|chain| earlier.chains.as_ref().is_ok_and(|seen| seen.contains(chain)));
        }
        self
    }
}

pub(crate) fn faults<'p>(node: &Node<'_>, state: KernelState, known: &Inventory) -> Vec<Fault<'p>> {
    let parts: [Result<Vec<Fault<'p>>>; 4] = [
        state.links.map(|found| links(found, known)),
        state.elements.map(|found| elements(found, known)),
        state.chains.map(|found| chains(found, known)),
        Ok(files(known)),
    ];
    let mut faults = Vec::new();
    for part in parts {
        match part {
            Ok(found) => faults.extend(found),
            Err(error) => faults.push(Fault::found(Location::Kernel, "", error.into())),
        }
    }
    faults.extend(addresses(node, known));
    faults
}

/// Links on the node whose alias names an owner.
fn links<'p>(found: Vec<Link>, known: &Inventory) -> Vec<Fault<'p>> {
    // A network name has no colon: an alias with one is part of a bridge and has no owner.
    let has_owner_format = |alias: &str| alias.matches('/').count() == 2 && !alias.contains(':');
    let is_owned = |link: &Link| has_owner_format(&link.alias) && ["veth", "ifb"].contains(&&*link.kind);
    let orphans = found.into_iter().filter(|link| is_owned(link) && !known.contains(&link.alias));
    orphans
        .map(|orphan| {
            let what = format!("{} {} has no known owner", orphan.kind, orphan.name);
            let fault = Fault::new(Location::Kernel, orphan.alias.clone(), what);
            match orphan.kind.as_str() {
                // The link that redirects into it has no known owner either.
                "ifb" => fault.repaired_by(move || Ok(Host::here()?.route.request(link::delete(&orphan))?)),
                // The peer is in a pod that may be running without a record.
                _ => fault,
            }
        })
        .collect()
}

fn elements<'p>(found: Vec<OwnedObject>, known: &Inventory) -> Vec<Fault<'p>> {
    let orphans = found.into_iter().filter(|one| !known.contains(&one.comment));
    orphans
        .map(|orphan| {
            let what = format!("{} without a known owner", orphan.feature);
            Fault::new(Location::Kernel, orphan.comment.clone(), what).repaired_by(move || {
                Ok(inventory::remove_all_of(Host::here()?.nft()?, &orphan.comment).map(drop)?)
            })
        })
        .collect()
}

fn chains<'p>(found: HashSet<(String, String)>, known: &Inventory) -> Vec<Fault<'p>> {
    let mut faults = Vec::new();
    for (network, container) in found {
        if known.of_container(&network, &container).next().is_some() {
            continue;
        }
        let owner = Owner::new(&*network, &*container, "");
        let what = "iptables rules of the Go plugins for an unknown container";
        faults.push(Fault::new(Location::Kernel, format!("{network}/{container}"), what).repaired_by(
            move || {
                let mut node = Host::here()?;
                legacy::remove_masquerade(node.nft()?, &owner)?;
                legacy::remove_ports(node.nft()?, &owner)?;
                Ok(())
            },
        ));
    }
    faults
}

/// Addresses that host-local has reserved for an unknown attachment.
fn addresses<'p>(node: &Node<'_>, known: &Inventory) -> Vec<Fault<'p>> {
    let mut faults = Vec::new();
    for folder in pools(node, known) {
        for taken in host_local::reservations(&folder) {
            let is_owner = |one: &crate::KnownAttachment| {
                taken.ifname.as_ref().is_none_or(|name| *name == one.owner.ifname)
            };
            let is_known = known.of_container(&taken.network, &taken.container).any(is_owner);
            if is_known || !is_settled(&taken.file) {
                continue;
            }
            let owner =
                format!("{}/{}/{}", taken.network, taken.container, taken.ifname.as_deref().unwrap_or("*"));
            let what = format!("address {} is reserved for an unknown container", taken.ip);
            faults.push(
                Fault::new(Location::Pool, owner, what).repaired_by(move || host_local::release(&taken)),
            );
        }
    }
    faults
}

/// The data directories of host-local: the default one and those of all configs.
fn pools(node: &Node<'_>, known: &Inventory) -> Vec<PathBuf> {
    let mut folders = vec![PathBuf::from(host_local::DATA_FOLDER)];
    let named = |config: &serde_json::Value| {
        let folder =
            podwire_cni_spec::json::get(podwire_cni_spec::json::get(config, "ipam")?, "dataDir")?.as_str()?;
        (!folder.is_empty()).then(|| PathBuf::from(folder))
    };
    let entries = known.attachments.iter().flat_map(|one| &one.ledger_files).flat_map(|file| &file.entries);
    folders.extend(entries.filter_map(|entry| named(&entry.config)));
    for network in node.folder.load().networks {
        folders.extend(
            network
                .list
                .plugins
                .iter()
                .filter_map(|plugin| named(&serde_json::Value::Object(plugin.raw.clone()))),
        );
    }
    folders.sort();
    folders.dedup();
    folders
}

/// Files that plugins keep for an attachment: backups of tuning, delegate configs of flannel.
fn files<'p>(known: &Inventory) -> Vec<Fault<'p>> {
    let is_known = |container: &str, ifname: Option<&str>| {
        let mut of_it = known.attachments.iter().filter(|one| one.owner.container == container);
        of_it.any(|one| ifname.is_none_or(|name| name == one.owner.ifname))
    };
    let mut faults = Vec::new();
    for (file, container, ifname) in tuning::backups(Path::new(tuning::DATA_FOLDER)) {
        if !is_known(&container, Some(&ifname)) && is_settled(&file) {
            faults.push(stale_file(
                file,
                format!("*/{container}/{ifname}"),
                "backup of tuning for an unknown container",
            ));
        }
    }
    for (file, container) in flannel::delegates(Path::new(flannel::DATA_FOLDER)) {
        if !is_known(&container, None) && is_settled(&file) {
            faults.push(stale_file(
                file,
                format!("*/{container}"),
                "delegate config of flannel for an unknown container",
            ));
        }
    }
    faults
}

fn stale_file<'p>(file: PathBuf, owner: String, what: &str) -> Fault<'p> {
    let text = format!("{what}: {}", file.display());
    Fault::new(Location::File, owner, text).repaired_by(move || match std::fs::remove_file(&file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            let refused: Result<(), Error> =
                Err(podwire_cni_spec::Error::new(podwire_cni_spec::code::IO, error.to_string()).into());
            refused.doing(|| format!("remove {}", file.display()))
        }
        _ => Ok(()),
    })
}
