//! What belongs to nobody that is known: links, firewall elements, chains of Go plugins, addresses, files.

use std::path::{Path, PathBuf};

use cni_plugin::{Context, Error, Result};
use kernel::firewall::{census, legacy};
use kernel::rt::link;
use kernel::{Host, Owner};
use plugins::{flannel, host_local, tuning};

use crate::census::{is_settled, Census};
use crate::{Fault, Node, Side};

pub(crate) fn faults<'p>(node: &Node<'_>, known: &Census) -> Vec<Fault<'p>> {
    let looks: [Result<Vec<Fault<'p>>>; 4] = [links(known), elements(known), chains(known), Ok(files(known))];
    let mut faults = Vec::new();
    for look in looks {
        match look {
            Ok(found) => faults.extend(found),
            Err(error) => faults.push(Fault::found(Side::Kernel, "", error.into())),
        }
    }
    faults.extend(addresses(node, known));
    faults
}

/// Links on the node whose alias names an owner.
fn links<'p>(known: &Census) -> Result<Vec<Fault<'p>>> {
    let mut node = Host::here()?;
    let signed =
        |link: &link::Link| link.alias.matches('/').count() == 2 && ["veth", "ifb"].contains(&&*link.kind);
    let strays =
        link::list(&mut node.route)?.into_iter().filter(|link| signed(link) && !known.knows(&link.alias));
    Ok(strays
        .map(|stray| {
            let what = format!("{} {} is in nobody's account", stray.kind, stray.name);
            let fault = Fault::new(Side::Kernel, stray.alias.clone(), what);
            match stray.kind.as_str() {
                // Whatever is redirected into it comes from a link that is in nobody's account either.
                "ifb" => fault.mended_by(move || Ok(Host::here()?.route.request(link::delete(&stray))?)),
                // Its other end is in a pod that may live: whoever runs containers knows.
                _ => fault,
            }
        })
        .collect())
}

fn elements<'p>(known: &Census) -> Result<Vec<Fault<'p>>> {
    let mut node = Host::here()?;
    let strays = census::belongings(node.nft()?)?.into_iter().filter(|one| !known.knows(&one.comment));
    Ok(strays
        .map(|stray| {
            let what = format!("{} of nobody's", stray.feature);
            Fault::new(Side::Kernel, stray.comment.clone(), what)
                .mended_by(move || Ok(census::remove_all_of(Host::here()?.nft()?, &stray.comment).map(drop)?))
        })
        .collect())
}

/// Chains that Go plugins made in iptables.
fn chains<'p>(known: &Census) -> Result<Vec<Fault<'p>>> {
    let mut node = Host::here()?;
    let mut faults = Vec::new();
    for (network, container) in legacy::containers(node.nft()?)? {
        if known.of_container(&network, &container).next().is_some() {
            continue;
        }
        let owner = Owner::new(&*network, &*container, "");
        let what = "iptables rules of the Go plugins for a container that nobody knows";
        faults.push(Fault::new(Side::Kernel, format!("{network}/{container}"), what).mended_by(move || {
            let mut node = Host::here()?;
            legacy::remove_masquerade(node.nft()?, &owner)?;
            legacy::remove_ports(node.nft()?, &owner)?;
            Ok(())
        }));
    }
    Ok(faults)
}

/// Addresses that host-local gave to somebody who is not known, or that a living pod does not have.
fn addresses<'p>(node: &Node<'_>, known: &Census) -> Vec<Fault<'p>> {
    let mut faults = Vec::new();
    for folder in pools(node, known) {
        for taken in host_local::reservations(&folder) {
            let is_it =
                |one: &crate::Known| taken.ifname.as_ref().is_none_or(|name| *name == one.owner.ifname);
            let is_known = known.of_container(&taken.network, &taken.container).any(is_it);
            if is_known || !is_settled(&taken.file) {
                continue;
            }
            let owner =
                format!("{}/{}/{}", taken.network, taken.container, taken.ifname.as_deref().unwrap_or("*"));
            let what = format!("address {} is reserved for nobody", taken.ip);
            faults.push(Fault::new(Side::Pool, owner, what).mended_by(move || host_local::give_back(&taken)));
        }
    }
    faults
}

/// The data folders of host-local: the usual one, and those that any config names.
fn pools(node: &Node<'_>, known: &Census) -> Vec<PathBuf> {
    let mut folders = vec![PathBuf::from(host_local::DATA_FOLDER)];
    let named = |config: &serde_json::Value| {
        let folder = cni::json::get(cni::json::get(config, "ipam")?, "dataDir")?.as_str()?;
        (!folder.is_empty()).then(|| PathBuf::from(folder))
    };
    let entries = known.known.iter().flat_map(|one| &one.accounts).flat_map(|account| &account.entries);
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

/// Files that plugins keep for an attachment: tuning's back-ups, flannel's configs of its delegates.
fn files<'p>(known: &Census) -> Vec<Fault<'p>> {
    let is_known = |container: &str, ifname: Option<&str>| {
        let mut of_it = known.known.iter().filter(|one| one.owner.container == container);
        of_it.any(|one| ifname.is_none_or(|name| name == one.owner.ifname))
    };
    let mut faults = Vec::new();
    for (file, container, ifname) in tuning::backups(Path::new(tuning::DATA_FOLDER)) {
        if !is_known(&container, Some(&ifname)) && is_settled(&file) {
            faults.push(stale_file(file, format!("*/{container}/{ifname}"), "tuning's back-up of nobody's"));
        }
    }
    for (file, container) in flannel::delegates(Path::new(flannel::DATA_FOLDER)) {
        if !is_known(&container, None) && is_settled(&file) {
            faults.push(stale_file(file, format!("*/{container}"), "flannel's config for nobody"));
        }
    }
    faults
}

fn stale_file<'p>(file: PathBuf, owner: String, what: &str) -> Fault<'p> {
    let text = format!("{what}: {}", file.display());
    Fault::new(Side::File, owner, text).mended_by(move || match std::fs::remove_file(&file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            let refused: Result<(), Error> = Err(cni::Error::new(cni::code::IO, error.to_string()).into());
            refused.doing(|| format!("remove {}", file.display()))
        }
        _ => Ok(()),
    })
}
