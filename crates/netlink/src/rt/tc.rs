//! Traffic control (`linux/pkt_sched.h`, `linux/pkt_cls.h`): a token bucket filter on a device, and the redirect of
//! incoming packets to another device, which applies a bucket to ingress.

pub mod htb;
pub mod program;

use crate::error::Result;
use crate::message::{Frame, Message};
use crate::socket::Socket;

const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TBF_PARMS: u16 = 1;
const TBF_RATE64: u16 = 4;
const TBF_BURST: u16 = 6;
const U32_SEL: u16 = 5;
const U32_ACT: u16 = 7;
const ACT_KIND: u16 = 1;
const ACT_OPTIONS: u16 = 2;
const MIRRED_PARMS: u16 = 2;
/// The parent of the root qdisc.
pub const ROOT: u32 = 0xffff_ffff;
const INGRESS: u32 = 0xffff_fff1;
const INGRESS_HANDLE: u32 = 0xffff_0000;
const ETH_P_ALL: u16 = 3;
const ETH_P_IP: u16 = 0x0800;
const ETH_P_IPV6: u16 = 0x86dd;
const ACT_STOLEN: i32 = 4;
const EGRESS_REDIRECT: i32 = 1;
const LINKLAYER_ETHERNET: u8 = 1;
/// The kernel's scheduler counts time in steps of 64 ns (`PSCHED_SHIFT`).
const TICK_NS: u64 = 64;

/// A token bucket filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    /// Bytes per second.
    pub rate: u64,
    /// The largest burst in bytes.
    pub burst: u32,
    /// The length of the queue in bytes.
    pub limit: u32,
}

/// A qdisc as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qdisc {
    /// The device's index.
    pub link: u32,
    /// `tbf`, `ingress`, `noqueue`…
    pub kind: String,
    /// Its parent; the root has `0xffffffff`.
    pub parent: u32,
    /// Its settings, if it is a token bucket filter.
    pub bucket: Option<TokenBucket>,
}

fn header(link: u32, handle: u32, parent: u32, info: u32) -> [u8; 20] {
    let mut head = [0; 20];
    head[4..8].copy_from_slice(&link.to_ne_bytes());
    head[8..12].copy_from_slice(&handle.to_ne_bytes());
    head[12..16].copy_from_slice(&parent.to_ne_bytes());
    head[16..20].copy_from_slice(&info.to_ne_bytes());
    head
}

impl TokenBucket {
    /// `struct tc_tbf_qopt`: two rate specifications, limit, buffer (time for the burst), mtu.
    fn parameters(&self) -> [u8; 36] {
        let ticks = u64::from(self.burst) * 1_000_000_000 / self.rate.max(1) / TICK_NS;
        let mut bytes = [0; 36];
        bytes[1] = LINKLAYER_ETHERNET;
        bytes[8..12].copy_from_slice(&u32::try_from(self.rate).unwrap_or(u32::MAX).to_ne_bytes());
        bytes[24..28].copy_from_slice(&self.limit.to_ne_bytes());
        bytes[28..32].copy_from_slice(&u32::try_from(ticks).unwrap_or(u32::MAX).to_ne_bytes());
        bytes
    }

    /// A message that makes it the root qdisc of a device, replacing the existing one.
    pub fn set_on(&self, link: u32, name: &str) -> Message {
        let doing = format!("limit {name} to {} bytes a second", self.rate);
        Message::new(libc::RTM_NEWQDISC, super::REPLACE, doing)
            .raw(&header(link, 1 << 16, ROOT, 0))
            .string(TCA_KIND, "tbf")
            .nest(TCA_OPTIONS, |m| {
                m.bytes(TBF_PARMS, &self.parameters())
                    .u32(TBF_BURST, self.burst)
                    .maybe((self.rate > u64::from(u32::MAX)).then_some(self.rate), |m, rate| {
                        m.u64(TBF_RATE64, rate)
                    })
            })
    }

    /// The time of the burst at the full rate, in scheduler ticks. The kernel stores this instead of the bytes and
    /// reports it in 32 bits: a burst of 275 s or more wraps around.
    fn reported_ticks(&self) -> u32 {
        (u128::from(self.burst) * 1_000_000_000 / u128::from(self.rate.max(1)) / u128::from(TICK_NS)) as u32
    }

    /// The same bucket as the kernel reports it.
    pub fn as_reported(&self) -> TokenBucket {
        TokenBucket { burst: burst(self.rate, self.reported_ticks()), ..*self }
    }

    fn read(options: crate::attr::Attr<'_>) -> Option<TokenBucket> {
        let find = |kind| options.nested().find(|attr| attr.kind == kind);
        let parameters = find(TBF_PARMS)?.value;
        let word = |at: usize| Some(u32::from_ne_bytes(parameters.get(at..at + 4)?.try_into().ok()?));
        // Above 4 GB/s the rate does not fit into the old field.
        let rate = find(TBF_RATE64).and_then(|attr| attr.u64()).or(word(8).map(u64::from))?;
        Some(TokenBucket { rate, burst: burst(rate, word(28)?), limit: word(24)? })
    }
}

/// The bytes that are sent in this time at this rate.
fn burst(rate: u64, ticks: u32) -> u32 {
    (u128::from(rate) * u128::from(ticks) * u128::from(TICK_NS) / 1_000_000_000) as u32
}

/// A message that adds the ingress qdisc to a device.
pub fn add_ingress(link: u32, name: &str) -> Message {
    Message::new(libc::RTM_NEWQDISC, super::CREATE, format!("add an ingress queue to {name}"))
        .raw(&header(link, INGRESS_HANDLE, INGRESS, 0))
        .string(TCA_KIND, "ingress")
}

/// A message that deletes the ingress qdisc of a device with its filters.
pub fn delete_ingress(link: u32, name: &str) -> Message {
    Message::new(libc::RTM_DELQDISC, 0, format!("remove the ingress queue from {name}"))
        .raw(&header(link, INGRESS_HANDLE, INGRESS, 0))
        .string(TCA_KIND, "ingress")
}

/// A message that deletes the root qdisc of a device; the kernel restores its default.
pub fn delete_root(link: u32, name: &str) -> Message {
    Message::new(libc::RTM_DELQDISC, 0, format!("remove the limit from {name}"))
        .raw(&header(link, 0, ROOT, 0))
}

/// A message that redirects all incoming packets of `from` to `to`.
pub fn redirect_ingress(from: u32, to: u32, name: &str) -> Message {
    // struct tc_u32_sel with one key that matches anything: terminal flag, one key.
    let mut selector = [0u8; 32];
    (selector[0], selector[2]) = (1, 1);
    // struct tc_mirred: index, capability, action, counters, egress action, device.
    let mut mirred = [0u8; 28];
    mirred[8..12].copy_from_slice(&ACT_STOLEN.to_ne_bytes());
    mirred[20..24].copy_from_slice(&EGRESS_REDIRECT.to_ne_bytes());
    mirred[24..28].copy_from_slice(&to.to_ne_bytes());
    let info = 1 << 16 | u32::from(ETH_P_ALL.to_be());
    Message::new(libc::RTM_NEWTFILTER, super::CREATE, format!("redirect what comes in at {name}"))
        .raw(&header(from, 0, INGRESS_HANDLE, info))
        .string(TCA_KIND, "u32")
        .nest(TCA_OPTIONS, |m| {
            m.bytes(U32_SEL, &selector).nest(U32_ACT, |m| {
                m.nest(1, |m| {
                    m.string(ACT_KIND, "mirred").nest(ACT_OPTIONS, |m| m.bytes(MIRRED_PARMS, &mirred))
                })
            })
        })
}

/// The devices to which incoming packets of a device are redirected; 0 is a deleted device, which drops them.
pub fn redirects(route: &mut Socket, link: u32) -> Result<Vec<u32>> {
    let doing = format!("list ingress filters of link number {link}");
    let message = Message::new(libc::RTM_GETTFILTER, 0, doing).raw(&header(link, 0, INGRESS_HANDLE, 0));
    let all = route.list(message, |frame| Some(read_redirects(frame)))?;
    Ok(all.into_iter().flatten().collect())
}

/// A filter has a list of actions, each with a kind and its options.
fn read_redirects(frame: Frame<'_>) -> Vec<u32> {
    let is_u32 = frame.attrs(20).any(|attr| attr.kind == TCA_KIND && attr.string() == "u32");
    let of_kind = |wanted: u16| move |attr: &crate::attr::Attr<'_>| attr.kind == wanted;
    let target = |action: crate::attr::Attr<'_>| {
        let kind = action.nested().find(of_kind(ACT_KIND))?;
        let options = action.nested().find(of_kind(ACT_OPTIONS))?;
        let parameters = options.nested().find(of_kind(MIRRED_PARMS));
        let mirred = parameters.filter(|_| kind.string() == "mirred")?.value;
        let word = |at: usize| Some(u32::from_ne_bytes(mirred.get(at..at + 4)?.try_into().ok()?));
        (word(20)? == EGRESS_REDIRECT as u32).then_some(word(24)?)
    };
    let options = frame.attrs(20).filter(|attr| is_u32 && attr.kind == TCA_OPTIONS);
    let lists = options.flat_map(|options| options.nested().filter(of_kind(U32_ACT)));
    lists.flat_map(|list| list.nested().filter_map(target)).collect()
}

/// The qdiscs of a device.
pub fn list(route: &mut Socket, link: u32) -> Result<Vec<Qdisc>> {
    let mut all = list_all(route)?;
    all.retain(|qdisc| qdisc.link == link);
    Ok(all)
}

/// The qdiscs of all devices.
pub fn list_all(route: &mut Socket) -> Result<Vec<Qdisc>> {
    let message = Message::new(libc::RTM_GETQDISC, 0, "list queues").raw(&header(0, 0, 0, 0));
    route.list(message, Qdisc::read)
}

impl Qdisc {
    /// Reads a qdisc from `RTM_NEWQDISC` or `RTM_DELQDISC`.
    pub fn read(frame: Frame<'_>) -> Option<Qdisc> {
        if frame.kind != libc::RTM_NEWQDISC && frame.kind != libc::RTM_DELQDISC {
            return None;
        }
        let head = frame.body.get(..20)?;
        let word = |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let mut qdisc = Qdisc { link: word(4), kind: String::new(), parent: word(12), bucket: None };
        for attr in frame.attrs(20) {
            match attr.kind {
                TCA_KIND => qdisc.kind = attr.string(),
                TCA_OPTIONS if qdisc.kind == "tbf" => qdisc.bucket = TokenBucket::read(attr),
                _ => {}
            }
        }
        Some(qdisc)
    }
}
