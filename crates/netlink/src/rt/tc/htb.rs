//! A hierarchical token bucket (`htb`) with two classes, one with a limit and one without: which packets are limited
//! depends on their destination. Numbers and parameters are those of the Go plugin bandwidth.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{header, ETH_P_IP, ETH_P_IPV6, LINKLAYER_ETHERNET, ROOT, TCA_KIND, TCA_OPTIONS, U32_SEL};
use crate::attr::Attr;
use crate::error::Result;
use crate::message::{Frame, Message};
use crate::rt::{CREATE, REPLACE};
use crate::socket::Socket;

const HTB_PARMS: u16 = 1;
const HTB_INIT: u16 = 2;
const HTB_RATE64: u16 = 6;
const HTB_CEIL64: u16 = 7;
const U32_CLASSID: u16 = 1;
/// The version of the structures (`TC_HTB_PROTOVER`).
const VERSION: u32 = 3;
/// The handle of the qdisc, 1:0.
const HANDLE: u32 = 1 << 16;
const LIMITED: u32 = 48;
const UNLIMITED: u32 = 1;
/// In bytes a second.
const UNLIMITED_RATE: u64 = 100_000_000_000;
/// The length of `struct tc_u32_sel` without keys, and of a key.
const SELECTOR: usize = 16;
const KEY: usize = 16;
/// Where a packet has its destination.
const DESTINATION_V4: usize = 16;
const DESTINATION_V6: usize = 24;

/// An address without host bits, and the length of its prefix.
pub type Subnet = (IpAddr, u8);

/// A limit for some destinations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Htb {
    /// Bytes a second.
    pub rate: u64,
    /// The time of the largest burst at this rate, in the scheduler's ticks.
    pub burst_ticks: u32,
    /// Whether destinations outside of the subnets are limited, and those inside are not.
    pub is_limited_by_default: bool,
    /// The subnets.
    pub subnets: BTreeSet<Subnet>,
}

impl Htb {
    /// A limit of `rate` bytes a second, with bursts of `burst` bytes.
    pub fn new(
        rate: u64,
        burst: u32,
        is_limited_by_default: bool,
        subnets: impl IntoIterator<Item = Subnet>,
    ) -> Htb {
        // Rounded to microseconds, as the Go plugin does, whose CHECK compares the ticks.
        let micros = u128::from(burst) * 1_000_000 / u128::from(rate.max(1));
        let ticks = u128::from(u32::try_from(micros).unwrap_or(u32::MAX)) * 1000 / u128::from(super::TICK_NS);
        let burst_ticks = u32::try_from(ticks).unwrap_or(u32::MAX);
        Htb { rate, burst_ticks, is_limited_by_default, subnets: subnets.into_iter().collect() }
    }

    /// Messages that make it the root qdisc of a device without one.
    pub fn create_on(&self, link: u32, name: &str) -> Vec<Message> {
        let (default, other) =
            if self.is_limited_by_default { (LIMITED, UNLIMITED) } else { (UNLIMITED, LIMITED) };
        let doing = || format!("limit {name} to {} bytes a second for some destinations", self.rate);
        let mut glob = [0; 20];
        glob[..4].copy_from_slice(&VERSION.to_ne_bytes());
        glob[4..8].copy_from_slice(&10u32.to_ne_bytes());
        glob[8..12].copy_from_slice(&default.to_ne_bytes());
        let qdisc = Message::new(libc::RTM_NEWQDISC, REPLACE, doing())
            .raw(&header(link, HANDLE, ROOT, 0))
            .string(TCA_KIND, "htb")
            .nest(TCA_OPTIONS, |m| m.bytes(HTB_INIT, &glob));
        let class = |number: u32, rate: u64, ticks: u32| {
            Message::new(libc::RTM_NEWTCLASS, CREATE, doing())
                .raw(&header(link, HANDLE | number, HANDLE, 0))
                .string(TCA_KIND, "htb")
                .nest(TCA_OPTIONS, |m| {
                    m.bytes(HTB_PARMS, &parameters(rate, ticks))
                        .maybe((rate > u64::from(u32::MAX)).then_some(rate), |m, rate| {
                            m.u64(HTB_RATE64, rate).u64(HTB_CEIL64, rate)
                        })
                })
        };
        let classes = [class(LIMITED, self.rate, self.burst_ticks), class(UNLIMITED, UNLIMITED_RATE, 0)];
        let filter = |subnet: &Subnet| {
            // Filters of two protocols need two priorities.
            let (priority, protocol) = if subnet.0.is_ipv4() { (16, ETH_P_IP) } else { (15, ETH_P_IPV6) };
            let info = priority << 16 | u32::from(protocol.to_be());
            Message::new(libc::RTM_NEWTFILTER, CREATE, doing())
                .raw(&header(link, 0, HANDLE, info))
                .string(TCA_KIND, "u32")
                .nest(TCA_OPTIONS, |m| m.u32(U32_CLASSID, HANDLE | other).bytes(U32_SEL, &selector(subnet)))
        };
        [qdisc].into_iter().chain(classes).chain(self.subnets.iter().map(filter)).collect()
    }
}

/// `struct tc_htb_opt`: two rate specifications, buffer, cbuffer, quantum, level, prio.
fn parameters(rate: u64, ticks: u32) -> [u8; 44] {
    // Without a quantum the kernel warns that it is out of range.
    let quantum = (rate / 10).clamp(1514, 200_000) as u32;
    let rate = u32::try_from(rate).unwrap_or(u32::MAX);
    let mut bytes = [0; 44];
    for at in [0, 12] {
        bytes[at + 1] = LINKLAYER_ETHERNET;
        bytes[at + 8..at + 12].copy_from_slice(&rate.to_ne_bytes());
    }
    for (at, word) in [(24, ticks), (28, ticks), (32, quantum)] {
        bytes[at..at + 4].copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

/// `struct tc_u32_sel` with a key for each word of the destination that has a mask, or one that matches anything.
fn selector((address, prefix): &Subnet) -> Vec<u8> {
    let (address, start) = match address {
        IpAddr::V4(address) => (address.octets().to_vec(), DESTINATION_V4),
        IpAddr::V6(address) => (address.octets().to_vec(), DESTINATION_V6),
    };
    let mask = u128::MAX.checked_shl(128 - u32::from(*prefix)).unwrap_or(0).to_be_bytes();
    let words = mask.chunks(4).zip(address.chunks(4)).enumerate();
    let keys: Vec<_> = words.filter(|(i, (mask, _))| *i == 0 || mask[0] != 0).collect();
    let mut bytes = vec![0; SELECTOR];
    (bytes[0], bytes[2]) = (1, keys.len() as u8);
    for (i, (mask, address)) in keys {
        bytes.extend_from_slice(mask);
        bytes.extend_from_slice(address);
        bytes.extend_from_slice(&((start + 4 * i) as i32).to_ne_bytes());
        bytes.extend_from_slice(&[0; 4]);
    }
    bytes
}

/// The subnet that a selector matches.
fn subnet(selector: &[u8]) -> Option<Subnet> {
    let count = usize::from(*selector.get(2)?);
    let (mut v4, mut v6, mut prefix, mut is_ipv4) = ([0; 4], [0; 16], 0, true);
    for key in selector.get(SELECTOR..SELECTOR + count * KEY)?.chunks(KEY) {
        let offset = usize::try_from(i32::from_ne_bytes(key[8..12].try_into().ok()?)).ok()?;
        prefix += key[..4].iter().map(|byte| byte.count_ones()).sum::<u32>();
        if offset == DESTINATION_V4 {
            v4.copy_from_slice(&key[4..8]);
        } else {
            is_ipv4 = false;
            let at = offset.checked_sub(DESTINATION_V6)?;
            v6.get_mut(at..at + 4)?.copy_from_slice(&key[4..8]);
        }
    }
    let address = if is_ipv4 { IpAddr::V4(Ipv4Addr::from(v4)) } else { IpAddr::V6(Ipv6Addr::from(v6)) };
    Some((address, u8::try_from(prefix).ok()?))
}

/// The limit on a device; `None` if its root qdisc is another one, or its limited class is missing.
pub fn find(route: &mut Socket, link: u32) -> Result<Option<Htb>> {
    let doing = || format!("list the limits of link number {link}");
    let qdiscs = Message::new(libc::RTM_GETQDISC, 0, doing()).raw(&header(link, 0, 0, 0));
    let default = route.list(qdiscs, |frame| default_class(&frame, link))?.into_iter().next();
    let classes = Message::new(libc::RTM_GETTCLASS, 0, doing()).raw(&header(link, 0, 0, 0));
    let limited = route.list(classes, |frame| limited_class(&frame))?.into_iter().next();
    let (Some(default), Some((rate, burst_ticks))) = (default, limited) else { return Ok(None) };
    let filters = Message::new(libc::RTM_GETTFILTER, 0, doing()).raw(&header(link, 0, HANDLE, 0));
    let other = HANDLE | if default == LIMITED { UNLIMITED } else { LIMITED };
    let subnets = route.list(filters, |frame| filtered(&frame, other))?.into_iter().collect();
    Ok(Some(Htb { rate, burst_ticks, is_limited_by_default: default == LIMITED, subnets }))
}

fn options<'f>(frame: &Frame<'f>, kind: &str) -> Option<Attr<'f>> {
    let is_kind = frame.attrs(20).any(|attr| attr.kind == TCA_KIND && attr.string() == kind);
    frame.attrs(20).find(|attr| is_kind && attr.kind == TCA_OPTIONS)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn nested<'a>(options: &Attr<'a>, kind: u16) -> Option<Attr<'a>> {
    options.nested().find(|attr| attr.kind == kind)
}

fn default_class(frame: &Frame<'_>, link: u32) -> Option<u32> {
    let is_root = word(frame.body, 4) == Some(link) && word(frame.body, 12) == Some(ROOT);
    let options = options(frame, "htb").filter(|_| is_root)?;
    word(nested(&options, HTB_INIT)?.value, 8)
}

fn limited_class(frame: &Frame<'_>) -> Option<(u64, u32)> {
    let options = options(frame, "htb").filter(|_| word(frame.body, 8) == Some(HANDLE | LIMITED))?;
    let parameters = nested(&options, HTB_PARMS)?.value;
    let rate =
        nested(&options, HTB_RATE64).and_then(|attr| attr.u64()).or(word(parameters, 8).map(u64::from))?;
    Some((rate, word(parameters, 24)?))
}

fn filtered(frame: &Frame<'_>, class: u32) -> Option<Subnet> {
    let options = options(frame, "u32")?;
    nested(&options, U32_CLASSID).filter(|attr| attr.u32() == Some(class))?;
    subnet(nested(&options, U32_SEL)?.value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_is_read_as_it_is_written() {
        let mut wrong = Vec::new();
        for (address, prefix) in [
            ("10.0.0.0", 8),
            ("192.0.2.7", 32),
            ("0.0.0.0", 0),
            ("fd00::", 8),
            ("2001:db8:1:2::", 63),
            ("::1", 128),
            ("::", 0),
        ] {
            let net: Subnet = (address.parse().unwrap(), prefix);
            let read = subnet(&selector(&net));
            if read != Some(net) {
                wrong.push(format!("{net:?}: {read:?}"));
            }
        }
        assert!(wrong.is_empty(), "{wrong:?}");
        assert_eq!(subnet(&[0; 3]), None);
    }

    #[test]
    fn bursts_are_counted_as_gos() {
        assert_eq!(Htb::new(1_000_000, 100_000, true, []).burst_ticks, 1_562_500);
    }
}
