//! The pod's port on the bridge: its VLANs, its check against spoofed hardware addresses (`macspoofchk`), and the wait
//! until it forwards.

use std::time::{Duration, Instant};

use podwire_cni_plugin::{Request, Result};
use podwire_kernel::bridge::{add_vlans, delete_vlans, Vlans};
use podwire_kernel::firewall::spoof;
use podwire_kernel::rt::{self, link};
use podwire_kernel::veth::Pair;
use podwire_kernel::{Host, Link, Undo};
use podwire_netlink::{Batch, Socket};

use super::config::Conf;

/// All VLAN ids.
const ALL_VLANS: Vlans = Vlans { first: 1, last: 4094, native: false };
/// The VLAN of untagged frames on a trunk if the config names none.
const NATIVE_VLAN: u16 = 1;
/// A port forwards within a millisecond after both ends of the veth pair are up.
const FORWARDING_TIMEOUT: Duration = Duration::from_secs(5);

/// Fails if the config uses VLANs and the bridge does not filter them. Enabling it here would cut off other ports.
pub(super) fn require_vlan_filtering(conf: &Conf, bridge: &Link) -> Result<()> {
    if !conf.uses_vlans() || bridge.vlan_filtering {
        return Ok(());
    }
    let text = format!("bridge {:?} does not filter VLANs, which vlan and vlanTrunk need", bridge.name);
    let hint = "use another bridge, or enable vlan_filtering while nothing else uses this one; \
                the kernel needs CONFIG_BRIDGE_VLAN_FILTERING";
    Err(podwire_cni_spec::Error::invalid_config(text).with_details(hint).into())
}

/// The VLANs of the pod's port. The native VLAN comes last, because the trunk may include it.
pub(super) fn wanted_vlans(conf: &Conf) -> impl Iterator<Item = Vlans> + '_ {
    let id = if conf.vlan == 0 { NATIVE_VLAN } else { conf.vlan as u16 };
    conf.trunk.iter().copied().chain([Vlans { first: id, last: id, native: true }])
}

/// The messages that put a port into these VLANs and remove the default VLAN that the kernel added.
pub(super) fn vlan_messages(conf: &Conf, port: &Link, vlans: impl IntoIterator<Item = Vlans>) -> Batch {
    let mut batch = Batch::new();
    if !conf.preserve_default_vlan {
        batch.push(delete_vlans(port, ALL_VLANS));
    }
    batch.extend(vlans.into_iter().map(|vlans| add_vlans(port, vlans)));
    batch
}

/// Puts the pod's port into its VLANs.
pub(super) fn set_vlans(conf: &Conf, node: &mut Host, pair: &Pair) -> Result<()> {
    if !conf.uses_vlans() {
        return Ok(());
    }
    let port = node.get_link(&pair.host)?;
    Ok(node.route.batch(vlan_messages(conf, &port, wanted_vlans(conf)))?)
}

/// Waits until the port forwards, so that the pod's first packet is not dropped.
pub(super) fn wait_until_forwarding(node: &mut Host, name: &str) -> Result<()> {
    // `get_link` takes the rtnl lock. A lookup without it would not do: the link's state is "up" shortly before the
    // bridge starts to forward, and only a reader that waits for the lock sees both.
    if node.get_link(name)?.operstate == link::OPER_UP {
        return Ok(());
    }
    let mut notices = Socket::route()?;
    notices.subscribe(rt::GROUP_LINK)?;
    let deadline = Instant::now() + FORWARDING_TIMEOUT;
    loop {
        // Read again after subscribing, and after lost notifications.
        let state = node.get_link(name)?.operstate;
        let left = deadline.saturating_duration_since(Instant::now());
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

/// Drops frames of the pod whose source is not its hardware address, and, unless it has a VLAN trunk, tagged ones.
pub(super) fn add_spoof_check<'a>(
    req: &'a Request<'a>,
    node: &mut Host,
    pair: &Pair,
    is_trunk: bool,
    undo: &mut Undo<'a>,
) -> Result<()> {
    spoof::add(node.nft()?, &req.owner(), &pair.host, pair.pod_mac, is_trunk)?;
    undo.push(|| drop(Host::here().map(|mut node| remove_spoof_check(req, &mut node))));
    Ok(())
}

/// Removes the spoof check.
pub(super) fn remove_spoof_check(req: &Request<'_>, node: &mut Host) -> Result<()> {
    let owner = req.owner();
    if let Some(nft) = node.find_nft()? {
        spoof::remove(nft, &owner, &podwire_kernel::veth::host_name(&owner))?;
    }
    Ok(())
}

/// Removes the spoof checks of attachments that are no longer valid.
pub(super) fn collect_spoof_checks(req: &Request<'_>, node: &mut Host) -> Result<()> {
    if let Some(nft) = node.find_nft()? {
        spoof::collect(nft, &req.network, &req.kept_owners()?)?;
    }
    Ok(())
}
