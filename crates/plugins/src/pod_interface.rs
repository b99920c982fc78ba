//! Configures a pod's interface: addresses, routes, sysctls and duplicate address detection.

use std::time::{Duration, Instant};

use podwire_cni_plugin::{Context, Result};
use podwire_cni_spec::{Attachment, Route};
use podwire_ip::IpFamily;
use podwire_kernel::rt::{self, address, link, link::attribute, route};
use podwire_kernel::{sysctl, Host, Link, Mac};
use podwire_netlink::{Batch, Message};

const ARP_NOTIFY: u16 = 22; // IPV4_DEVCONF_ARP_NOTIFY, linux/ip.h
const GROUP_IPV6_ADDRESS: u32 = 9; // RTNLGRP_IPV6_IFADDR, linux/rtnetlink.h
/// Duplicate address detection takes one or two seconds.
const DAD_TIMEOUT: Duration = Duration::from_secs(10);

/// How to configure an interface.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Run IPv6 duplicate address detection and wait for its result.
    pub detect_duplicates: bool,
    /// The hardware address to set; `None` keeps the current one.
    pub mac: Option<Mac>,
    /// Send gratuitous ARP for IPv4 addresses when the link comes up.
    pub announce: bool,
}

/// Adds the addresses of `result` to `link`, brings it up and adds the routes, all in one batch.
pub fn configure(pod: &mut Host, link: &Link, result: &Attachment, options: Options) -> Result<()> {
    let has_v6 = result.ips.iter().any(|ip| ip.address.addr().is_ipv6());
    if has_v6 {
        pod.run(|| enable_ipv6(&link.name, options.detect_duplicates))??;
    }
    let mut batch = Batch::new();
    if let Some(mac) = options.mac {
        let doing = format!("set the hardware address of {} to {mac}", link.name);
        batch.push(link::change(link.index, doing).bytes(attribute::ADDRESS, &mac.0));
    }
    if options.announce {
        batch.push(set_arp_notify(link));
    }
    for ip in &result.ips {
        let (addr, prefix) = (ip.address.addr(), ip.address.prefix_len());
        batch.push(address::add(link.index, addr, prefix, options.detect_duplicates));
    }
    batch.push(link::up(link));
    // If several networks have a route to the same destination, the network that was attached last wins.
    batch.extend(result.routes.iter().map(|wanted| kernel_route(wanted, link, result).prepend()));
    pod.route.batch(batch).doing(|| format!("configure interface {} in the pod", link.name))?;
    if has_v6 && options.detect_duplicates {
        wait_for_duplicate_detection(pod, link)?;
    }
    Ok(())
}

/// Sends gratuitous ARP from a link that is up. With `arp_notify`, setting the hardware address triggers it, even if
/// the address stays the same.
pub(crate) fn announce(pod: &mut Host, link: &Link, mac: Mac) -> Result<()> {
    let mut batch = Batch::new();
    batch.push(set_arp_notify(link));
    let doing = format!("announce {} at {mac}", link.name);
    batch.push(link::change(link.index, doing).bytes(attribute::ADDRESS, &mac.0));
    Ok(pod.route.batch(batch)?)
}

/// The message that sets `arp_notify`: the kernel then sends gratuitous ARP when the link comes up or its hardware
/// address is set. A sysctl in a link message costs a tenth of a write to /proc/sys.
fn set_arp_notify(link: &Link) -> Message {
    let knob = |m: Message| m.nest(attribute::INET_CONF, |m| m.u32(ARP_NOTIFY, 1));
    let inet = u16::from(rt::address_family(IpFamily::V4));
    link::change(link.index, format!("set arp_notify of {}", link.name))
        .nest(attribute::AF_SPEC, |m| m.nest(inet, knob))
}

/// Enables IPv6, which may be off for new interfaces, and keeps addresses when the link goes down.
pub(crate) fn enable_ipv6(name: &str, detect_duplicates: bool) -> podwire_kernel::Result<()> {
    for interface in ["lo", name] {
        sysctl::ensure_if_there(&format!("net/ipv6/conf/{interface}/disable_ipv6"), "0")?;
    }
    sysctl::ensure_if_there(&format!("net/ipv6/conf/{name}/keep_addr_on_down"), "1")?;
    if !detect_duplicates {
        // Makes the link-local address usable at once, too.
        return sysctl::ensure_if_there(&format!("net/ipv6/conf/{name}/accept_dad"), "0");
    }
    sysctl::ensure_if_there(&format!("net/ipv6/conf/{name}/enhanced_dad"), "1")?;
    sysctl::ensure_if_there(&format!("net/ipv6/conf/{name}/accept_dad"), "1")
}

/// Enables forwarding on the node for these families.
pub(crate) fn enable_forwarding(families: &[IpFamily]) -> podwire_kernel::Result<()> {
    sysctl::enable_forwarding(families)
}

/// The kernel's form of a route. A route without a gateway gets the gateway of the first address of its family, unless
/// its scope is link.
pub(crate) fn kernel_route(wanted: &Route, link: &Link, result: &Attachment) -> route::Route {
    let family = IpFamily::of_net(wanted.dst);
    let is_on_link = wanted.scope == Some(u32::from(route::LINK));
    let gateways = result.ips.iter().filter_map(|ip| ip.gateway).filter(|_| !is_on_link);
    let via = || gateways.clone().find(|gateway| IpFamily::of(*gateway) == family);
    route::Route {
        gateway: wanted.gw.or_else(via),
        link: Some(link.index),
        table: wanted.table.unwrap_or(route::MAIN),
        priority: wanted.priority,
        scope: wanted.scope.map_or(route::UNIVERSE, |scope| scope as u8),
        mtu: wanted.mtu,
        advmss: wanted.advmss,
        ..route::Route::to(wanted.dst.network(), wanted.dst.prefix_len())
    }
}

/// Waits until no IPv6 address of `link` is tentative, except the link-local one. The kernel sends a notification on
/// every change. Without carrier the kernel cannot probe: it does so when the carrier appears, so nothing is waited
/// for.
fn wait_for_duplicate_detection(pod: &mut Host, link: &Link) -> Result<()> {
    let mut notices = pod.run(podwire_netlink::Socket::route)??;
    notices.subscribe(GROUP_IPV6_ADDRESS)?;
    let deadline = Instant::now() + DAD_TIMEOUT;
    loop {
        let all = address::list(&mut pod.route, link.index)?;
        if let Some(taken) = all.iter().find(|address| address.is_duplicate()) {
            let text = format!("{}: address {} is used by another host on this network", link.name, taken.ip);
            return Err(podwire_cni_spec::Error::internal(text).into());
        }
        let is_pending = |one: &address::Address| one.is_tentative() && one.scope != route::LINK;
        if !all.iter().any(is_pending) || !link::by_index(&mut pod.route, link.index)?.has_carrier() {
            return Ok(());
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let text = format!("{}: duplicate address detection did not finish", link.name);
            return Err(podwire_cni_spec::Error::internal(text).into());
        }
        notices.notice(left, |_| Some(()))?;
    }
}
