//! What belongs to nobody that is known: links, firewall elements, chains of Go plugins, addresses, files.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use podwire_cni_plugin::{Context, Error, Result};
use podwire_kernel::firewall::census::{self, Belonging};
use podwire_kernel::firewall::legacy;
use podwire_kernel::rt::link::{self, Link};
use podwire_kernel::{Host, Owner};
use podwire_netlink::Socket;
use podwire_plugins::{flannel, host_local, tuning};

use crate::census::{is_settled, Census};
use crate::{Fault, Node, Side};

/// What `look` sees in nf_tables; nothing, where the kernel has none.
fn in_firewall<T: Default>(look: impl FnOnce(&mut Socket) -> podwire_kernel::Result<T>) -> Result<T> {
    Ok(Host::here()?.find_nft()?.map_or_else(|| Ok(T::default()), look)?)
}

/// What the kernel has.
pub(crate) struct There {
    links: Result<Vec<Link>>,
    elements: Result<Vec<Belonging>>,
    /// Network and container of chains that Go plugins made in iptables.
    chains: Result<HashSet<(String, String)>>,
}

impl There {
    pub(crate) fn look() -> There {
        There {
            links: Host::here().and_then(|mut node| Ok(link::list(&mut node.route)?)).map_err(Error::from),
            elements: in_firewall(census::belongings),
            chains: in_firewall(legacy::containers),
        }
    }

    /// Of that, what was there in an earlier look, too. What could not be looked at then does not count.
    pub(crate) fn and_before(mut self, earlier: &There) -> There {
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

pub(crate) fn faults<'p>(node: &Node<'_>, there: There, known: &Census) -> Vec<Fault<'p>> {
    let looks: [Result<Vec<Fault<'p>>>; 4] = [
        there.links.map(|there| links(there, known)),
        there.elements.map(|there| elements(there, known)),
        there.chains.map(|there| chains(there, known)),
        Ok(files(known)),
    ];
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
fn links<'p>(there: Vec<Link>, known: &Census) -> Vec<Fault<'p>> {
    // No network has a colon in its name: what has one is a part of a bridge, and nobody's.
    let is_signed = |alias: &str| alias.matches('/').count() == 2 && !alias.contains(':');
    let signed = |link: &Link| is_signed(&link.alias) && ["veth", "ifb"].contains(&&*link.kind);
    let strays = there.into_iter().filter(|link| signed(link) && !known.knows(&link.alias));
    strays
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
        .collect()
}

fn elements<'p>(there: Vec<Belonging>, known: &Census) -> Vec<Fault<'p>> {
    let strays = there.into_iter().filter(|one| !known.knows(&one.comment));
    strays
        .map(|stray| {
            let what = format!("{} of nobody's", stray.feature);
            Fault::new(Side::Kernel, stray.comment.clone(), what)
                .mended_by(move || Ok(census::remove_all_of(Host::here()?.nft()?, &stray.comment).map(drop)?))
        })
        .collect()
}

fn chains<'p>(there: HashSet<(String, String)>, known: &Census) -> Vec<Fault<'p>> {
    let mut faults = Vec::new();
    for (network, container) in there {
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
    faults
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
            faults.push(Fault::new(Side::Pool, owner, what).mended_by(move || host_local::release(&taken)));
        }
    }
    faults
}

/// The data folders of host-local: the usual one, and those that any config names.
fn pools(node: &Node<'_>, known: &Census) -> Vec<PathBuf> {
    let mut folders = vec![PathBuf::from(host_local::DATA_FOLDER)];
    let named = |config: &serde_json::Value| {
        let folder =
            podwire_cni_spec::json::get(podwire_cni_spec::json::get(config, "ipam")?, "dataDir")?.as_str()?;
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
            let refused: Result<(), Error> =
                Err(podwire_cni_spec::Error::new(podwire_cni_spec::code::IO, error.to_string()).into());
            refused.doing(|| format!("remove {}", file.display()))
        }
        _ => Ok(()),
    })
}
