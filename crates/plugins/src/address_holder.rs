//! Other pods with the same address. Each pool assigns an address once, but two networks of a node can have overlapping
//! subnets. Then the rules for one pod would be taken from the other.

use podwire_cni_plugin::ledger::{self, Entry, LedgerFile};
use podwire_cni_plugin::{Finding, Request, Result};
use podwire_cni_spec::config::AddressScope;
use podwire_cni_spec::{json, Attachment};
use podwire_kernel::{Error, Host, Netns, Owner};

use crate::host_local;

/// Whether the owner of a comment is running: the ledger has its ADD, and its interface exists. Called only for an object
/// that already has another owner, so that it costs other ADDs nothing.
pub(crate) fn is_running(comment: &str) -> bool {
    let mut names = comment.splitn(3, '/');
    let (Some(network), Some(container), Some(ifname)) = (names.next(), names.next(), names.next()) else {
        return false;
    };
    let owner = Owner::new(network, container, ifname);
    ledger_files(&owner).iter().flat_map(|file| &file.entries).any(is_in_use)
}

fn ledger_files(owner: &Owner) -> Vec<LedgerFile> {
    crate::PLUGINS.iter().filter_map(|plugin| ledger::find(owner, plugin.name())).collect()
}

/// Whether the interface of an ADD exists.
fn is_in_use(entry: &Entry) -> bool {
    if entry.netns.is_empty() {
        return false;
    }
    match entry.find_netns() {
        Ok(Some(netns)) => has_interface(netns, &entry.ifname),
        Ok(None) => false,
        // A namespace that cannot be opened may still exist.
        Err(_) => true,
    }
}

/// Refuses addresses of host-local that a running pod of another network has, where both networks meet: the node routes
/// for both, or they share an L2 segment. This costs one look for a file in each other network's folder.
///
/// An address is reserved before the call, so that of two ADDs at the same time at least one sees the other.
pub(crate) fn refuse_taken(req: &Request<'_>, lease: &Attachment) -> Result<()> {
    let plugin = json::get(&req.config, "type").and_then(|kind| kind.as_str()).unwrap_or_default();
    let scope = AddressScope::of(plugin, &req.config);
    if scope == AddressScope::default() {
        return Ok(());
    }
    let ips: Vec<_> = lease.ips.iter().map(|ip| ip.address.addr()).collect();
    let mut holders = host_local::holders_in_other_networks(req, &ips).into_iter();
    match holders.find(|(_, holder)| holds(holder, &scope)) {
        None => Ok(()),
        Some((ip, holder)) => {
            Err(Error::AddressTaken { address: ip.to_string(), holder: holder.comment() }.into())
        }
    }
}

/// Whether the owner is running, or its ADD is in progress, in a scope that meets `scope`.
fn holds(owner: &Owner, scope: &AddressScope) -> bool {
    ledger_files(owner).iter().any(|file| {
        let meets = |entry: &&Entry| {
            let other = AddressScope::of(&entry.plugin, &entry.config);
            other.meets(scope) && !are_in_different_vrfs(&other, scope)
        };
        file.entries.iter().filter(meets).any(|entry| file.is_locked || is_in_use(entry))
    })
}

/// Whether the bridges of two networks are in different VRFs of the node: these have their own routes. Called only for an
/// address that both networks have given.
fn are_in_different_vrfs(one: &AddressScope, other: &AddressScope) -> bool {
    let Ok(mut node) = Host::here() else { return false };
    let mut master = |scope: &AddressScope| {
        let name = &scope.segment.as_ref()?.link;
        node.find_link(name).ok()??.master
    };
    master(one) != master(other)
}

/// A Go plugin that detaches a pod removes its interface, but not its rules.
fn has_interface(netns: Netns, ifname: &str) -> bool {
    let found = Host::within(netns).and_then(|pod| pod.peek_link(ifname));
    !matches!(found, Err(error) if error.is_gone())
}

/// The holder of an object, if it is another running pod. The difference has no repair: the repair would take the object from
/// that pod.
pub(crate) fn conflict<'p>(
    owner: &Owner,
    address: impl std::fmt::Display,
    holders: impl IntoIterator<Item = String>,
) -> Option<Finding<'p>> {
    let other = holders.into_iter().find(|holder| !owner.matches(holder) && is_running(holder))?;
    let text = format!("address {address} belongs to {other} too: two networks overlap");
    Some(Finding::new(text))
}
