//! Addresses and routes on a pod's interface: putting them there.

use std::time::{Duration, Instant};

use podwire_cni_plugin::{Context, Result};
use podwire_cni_spec::{Attachment, Route};
use podwire_kernel::rt::{self, address, link, link::attribute, route};
use podwire_kernel::{sysctl, Host, Link, Mac};
use podwire_netlink::{Batch, Message};

const ARP_NOTIFY: u16 = 22; // IPV4_DEVCONF_ARP_NOTIFY, linux/ip.h
const GROUP_IPV6_ADDRESS: u32 = 9; // RTNLGRP_IPV6_IFADDR, linux/rtnetlink.h
/// Duplicate address detection takes a second or two.
const DAD_PATIENCE: Duration = Duration::from_secs(10);

/// How an interface gets its addresses, and by which hardware address others know it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Ask the network whether somebody has an IPv6 address already, and wait for the answer.
    pub detect_duplicates: bool,
    /// The hardware address that it is to have, if not the one that it has.
    pub mac: Option<Mac>,
    /// Tell the neighbours about an IPv4 address when the link comes up.
    pub announce: bool,
}

/// Gives `link` the addresses of `result`, brings it up and adds the routes, all in one batch.
pub fn configure(pod: &mut Host, link: &Link, result: &Attachment, options: Options) -> Result<()> {
    let has_v6 = result.ips.iter().any(|ip| ip.address.addr().is_ipv6());
    if has_v6 {
        pod.run(|| allow_ipv6(&link.name, options.detect_duplicates))??;
    }
    let mut batch = Batch::new();
    if let Some(mac) = options.mac {
        let doing = format!("give {} the hardware address {mac}", link.name);
        batch.push(link::change(link.index, doing).bytes(attribute::ADDRESS, &mac.0));
    }
    if options.announce {
        batch.push(announcing(link));
    }
    for ip in &result.ips {
        let (addr, prefix) = (ip.address.addr(), ip.address.prefix_len());
        batch.push(address::add(link.index, addr, prefix, options.detect_duplicates));
    }
    batch.push(link::up(link));
    // Of several networks with a route to the same destination, the one that the pod came to last has it.
    batch.extend(result.routes.iter().map(|wanted| wire_route(wanted, link, result).prepend()));
    pod.route.batch(batch).doing(|| format!("configure interface {} in the pod", link.name))?;
    if has_v6 && options.detect_duplicates {
        settle(pod, link)?;
    }
    Ok(())
}

/// Lets a link that is up tell its neighbours of its IPv4 addresses: it gets the hardware address that it has.
pub(crate) fn announce(pod: &mut Host, link: &Link, mac: Mac) -> Result<()> {
    let mut batch = Batch::new();
    batch.push(announcing(link));
    let doing = format!("announce {} at {mac}", link.name);
    batch.push(link::change(link.index, doing).bytes(attribute::ADDRESS, &mac.0));
    Ok(pod.route.batch(batch)?)
}

/// A message that makes a link tell its neighbours when it comes up or gets another hardware address. Sysctls ride in a link message for a tenth
/// of what a write to /proc/sys costs.
fn announcing(link: &Link) -> Message {
    let knob = |m: Message| m.nest(attribute::INET_CONF, |m| m.u32(ARP_NOTIFY, 1));
    link::change(link.index, format!("set arp_notify of {}", link.name))
        .nest(attribute::AF_SPEC, |m| m.nest(libc_inet(), knob))
}

fn libc_inet() -> u16 {
    u16::from(rt::address_family(podwire_ip::IpFamily::V4))
}

/// IPv6 may be off for new interfaces; and addresses should survive the link going down.
pub(crate) fn allow_ipv6(name: &str, detect_duplicates: bool) -> podwire_kernel::Result<()> {
    for interface in ["lo", name] {
        sysctl::ensure_if_there(&format!("net/ipv6/conf/{interface}/disable_ipv6"), "0")?;
    }
    sysctl::ensure_if_there(&format!("net/ipv6/conf/{name}/keep_addr_on_down"), "1")?;
    match detect_duplicates {
        // The link-local address too may be used at once.
        false => sysctl::ensure_if_there(&format!("net/ipv6/conf/{name}/accept_dad"), "0"),
        true => {
            sysctl::ensure_if_there(&format!("net/ipv6/conf/{name}/enhanced_dad"), "1")?;
            sysctl::ensure_if_there(&format!("net/ipv6/conf/{name}/accept_dad"), "1")
        }
    }
}

/// The kernel's form of a route. Without a gateway of its own it goes through that of the first address of
/// its family, unless its destination is on the wire itself.
pub(crate) fn wire_route(wanted: &Route, link: &Link, result: &Attachment) -> route::Route {
    let v4 = wanted.dst.addr().is_ipv4();
    let on_the_wire = wanted.scope == Some(u32::from(route::LINK));
    let gateways = result.ips.iter().filter_map(|ip| ip.gateway).filter(|_| !on_the_wire);
    let via = || gateways.clone().find(|gateway| gateway.is_ipv4() == v4);
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

/// Waits until no IPv6 address that `link` was given is tentative; its link-local one may take its time. The kernel
/// tells when one has changed. On a wire without carrier there is nobody to ask, and the kernel asks when it is plugged in.
fn settle(pod: &mut Host, link: &Link) -> Result<()> {
    let mut notices = pod.run(podwire_netlink::Socket::route)??;
    notices.subscribe(GROUP_IPV6_ADDRESS)?;
    let end = Instant::now() + DAD_PATIENCE;
    loop {
        let all = address::list(&mut pod.route, link.index)?;
        if let Some(taken) = all.iter().find(|address| address.is_duplicate()) {
            let text =
                format!("{}: address {} is used by somebody else on this network", link.name, taken.ip);
            return Err(podwire_cni_spec::Error::internal(text).into());
        }
        let is_open = |one: &address::Address| one.is_tentative() && one.scope != route::LINK;
        if !all.iter().any(is_open) || !link::by_index(&mut pod.route, link.index)?.has_carrier() {
            return Ok(());
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let text = format!("{}: duplicate address detection did not end", link.name);
            return Err(podwire_cni_spec::Error::internal(text).into());
        }
        notices.notice(left, |_| Some(()))?;
    }
}
