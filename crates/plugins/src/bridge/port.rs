//! The pod's port on the bridge: its VLANs, its guard against borrowed hardware addresses, and the moment
//! from which it forwards.

use std::time::{Duration, Instant};

use podwire_cni_plugin::{Request, Result};
use podwire_kernel::bridge::{add_vlans, delete_vlans, Vlans};
use podwire_kernel::firewall::spoof;
use podwire_kernel::rt::{self, link};
use podwire_kernel::veth::Pair;
use podwire_kernel::{Host, Link, Undo};
use podwire_netlink::{Batch, Socket};

use super::config::Conf;

/// Every VLAN there can be.
const ALL_VLANS: Vlans = Vlans { first: 1, last: 4094, native: false };
/// Where frames without a tag belong on a trunk whose config does not say.
const NATIVE_VLAN: u16 = 1;
/// A port forwards within a millisecond of its cable being up at both ends.
const PATIENCE: Duration = Duration::from_secs(5);

/// VLANs need a bridge that filters them: switching that on under the feet of other ports would cut them off.
pub(super) fn require_vlan_filtering(conf: &Conf, bridge: &Link) -> Result<()> {
    if !conf.uses_vlans() || bridge.vlan_filtering {
        return Ok(());
    }
    let text = format!("bridge {:?} does not filter VLANs, which vlan and vlanTrunk need", bridge.name);
    let hint = "use another bridge, or switch vlan_filtering on yourself when nothing else uses this one; \
                a kernel without CONFIG_BRIDGE_VLAN_FILTERING cannot";
    Err(podwire_cni_spec::Error::invalid_config(text).with_details(hint).into())
}

/// The VLANs that a port of this config has. The native one is the last: the trunk's may include it.
pub(super) fn wanted_vlans(conf: &Conf) -> impl Iterator<Item = Vlans> + '_ {
    let id = if conf.vlan == 0 { NATIVE_VLAN } else { conf.vlan as u16 };
    conf.trunk.iter().copied().chain([Vlans { first: id, last: id, native: true }])
}

/// Messages that give a port these VLANs, and take away what the kernel gave it when it became a port.
pub(super) fn vlan_messages(conf: &Conf, port: &Link, vlans: impl IntoIterator<Item = Vlans>) -> Batch {
    let mut batch = Batch::new();
    if !conf.preserve_default_vlan {
        batch.push(delete_vlans(port, ALL_VLANS));
    }
    batch.extend(vlans.into_iter().map(|vlans| add_vlans(port, vlans)));
    batch
}

/// Gives the port its VLANs.
pub(super) fn restrict(conf: &Conf, node: &mut Host, pair: &Pair) -> Result<()> {
    if !conf.uses_vlans() {
        return Ok(());
    }
    let port = node.get_link(&pair.host)?;
    Ok(node.route.batch(vlan_messages(conf, &port, wanted_vlans(conf)))?)
}

/// Waits until the port forwards, so that the pod's first packet is not its first lost one.
pub(super) fn wait_until_it_forwards(node: &mut Host, name: &str) -> Result<()> {
    // A glance would not do: the kernel says "up" a moment before the bridge hears of it, and only who waits for the lock of all links sees both.
    if node.get_link(name)?.operstate == link::OPER_UP {
        return Ok(());
    }
    let mut notices = Socket::route()?;
    notices.subscribe(rt::GROUP_LINK)?;
    let end = Instant::now() + PATIENCE;
    loop {
        // Asked again after the subscription, and whenever notices were lost.
        let state = node.get_link(name)?.operstate;
        let left = end.saturating_duration_since(Instant::now());
        if state == link::OPER_UP {
            return Ok(());
        }
        if left.is_zero() {
            let text =
                format!("bridge port {name} in error state: it did not come up (operational state {state})");
            return Err(podwire_cni_spec::Error::internal(text).into());
        }
        notices.notice(left, |frame| Link::read(frame).filter(|link| link.name == name))?;
    }
}

/// Drops what the pod sends from a hardware address that is not its own.
pub(super) fn guard<'a>(
    req: &'a Request<'a>,
    node: &mut Host,
    pair: &Pair,
    undo: &mut Undo<'a>,
) -> Result<()> {
    spoof::add(node.nft()?, &req.owner(), &pair.host, pair.pod_mac)?;
    undo.push(|| drop(Host::here().map(|mut node| unguard(req, &mut node))));
    Ok(())
}

/// Takes the guard away.
pub(super) fn unguard(req: &Request<'_>, node: &mut Host) -> Result<()> {
    let owner = req.owner();
    if let Some(nft) = node.find_nft()? {
        spoof::remove(nft, &owner, &podwire_kernel::veth::host_name(&owner))?;
    }
    Ok(())
}

/// Takes the guards of attachments away that are not valid any more.
pub(super) fn collect_guards(req: &Request<'_>, node: &mut Host) -> Result<()> {
    if let Some(nft) = node.find_nft()? {
        spoof::collect(nft, &req.network, &req.kept_owners()?)?;
    }
    Ok(())
}
