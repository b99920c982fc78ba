//! Other pods with the same address. Each pool assigns an address once, but two networks of a node can have overlapping
//! subnets. Then the rules for one pod would be taken from the other.

use podwire_cni_plugin::{ledger, Finding};
use podwire_kernel::{Host, Netns, Owner};

/// Whether the owner of a comment is running: the ledger has its ADD, and its interface exists. Called only for an object
/// that already has another owner, so that it costs other ADDs nothing.
pub(crate) fn is_running(comment: &str) -> bool {
    let mut names = comment.splitn(3, '/');
    let (Some(network), Some(container), Some(ifname)) = (names.next(), names.next(), names.next()) else {
        return false;
    };
    let owner = Owner::new(network, container, ifname);
    let files = crate::PLUGINS.iter().filter_map(|plugin| ledger::find(&owner, plugin.name()));
    let mut entries = files.flat_map(|file| file.entries).filter(|entry| !entry.netns.is_empty());
    entries.any(|entry| match entry.find_netns() {
        Ok(Some(netns)) => has_interface(netns, &entry.ifname),
        Ok(None) => false,
        // A namespace that cannot be opened may still exist.
        Err(_) => true,
    })
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
