//! eBPF programs as filters of a device (`clsact` and `cls_bpf`). They stay with the device until it is deleted, without a
//! process and without a pin.

use std::os::fd::{AsRawFd, BorrowedFd};

use super::{header, ETH_P_ALL, INGRESS, INGRESS_HANDLE, TCA_KIND, TCA_OPTIONS};
use crate::error::Result;
use crate::message::{Frame, Message};
use crate::rt;
use crate::socket::Socket;

const BPF_FD: u16 = 6;
const BPF_NAME: u16 = 7;
const BPF_FLAGS: u16 = 8;
const BPF_ID: u16 = 11;
/// The program's return value is the verdict.
const DIRECT_ACTION: u32 = 1;
/// The handle and the priority of our filter.
const HANDLE: u32 = 1;
const PRIORITY: u32 = 1;

/// Which packets of a device a program sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// Those that the node receives from the device.
    Ingress,
    /// Those that the node sends by the device.
    Egress,
}

impl Direction {
    /// Both.
    pub const ALL: [Direction; 2] = [Direction::Ingress, Direction::Egress];

    /// `TC_H_CLSACT` with `TC_H_MIN_INGRESS` or `TC_H_MIN_EGRESS`.
    fn parent(self) -> u32 {
        match self {
            Direction::Ingress => 0xffff_fff2,
            Direction::Egress => 0xffff_fff3,
        }
    }
}

/// A filter of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// `bpf`, `u32`, `flower`…
    pub kind: String,
    /// The name of the filter, if it is a program.
    pub name: String,
    /// The kernel's number of the program, if it is one.
    pub program: Option<u32>,
}

/// A message that adds the qdisc that holds programs. It does not queue.
pub fn add_clsact(link: u32, name: &str) -> Message {
    Message::new(libc::RTM_NEWQDISC, rt::CREATE, format!("prepare {name} for programs"))
        .raw(&header(link, INGRESS_HANDLE, INGRESS, 0))
        .string(TCA_KIND, "clsact")
}

/// A message that deletes the qdisc with all programs.
pub fn delete_clsact(link: u32, name: &str) -> Message {
    Message::new(libc::RTM_DELQDISC, 0, format!("remove the programs from {name}"))
        .raw(&header(link, INGRESS_HANDLE, INGRESS, 0))
        .string(TCA_KIND, "clsact")
}

/// A message that adds a program as filter `filter`, or replaces the one that was added so before.
pub fn set(link: u32, name: &str, direction: Direction, filter: &str, program: BorrowedFd<'_>) -> Message {
    let info = PRIORITY << 16 | u32::from(ETH_P_ALL.to_be());
    let flags = libc::NLM_F_CREATE as u16;
    Message::new(libc::RTM_NEWTFILTER, flags, format!("attach program {filter} to {name}"))
        .raw(&header(link, HANDLE, direction.parent(), info))
        .string(TCA_KIND, "bpf")
        .nest(TCA_OPTIONS, |m| {
            m.u32(BPF_FD, program.as_raw_fd() as u32).string(BPF_NAME, filter).u32(BPF_FLAGS, DIRECT_ACTION)
        })
}

/// A message that deletes the program that [`set`] has added.
pub fn delete(link: u32, name: &str, direction: Direction) -> Message {
    let info = PRIORITY << 16 | u32::from(ETH_P_ALL.to_be());
    Message::new(libc::RTM_DELTFILTER, 0, format!("remove the program from {name}"))
        .raw(&header(link, HANDLE, direction.parent(), info))
        .string(TCA_KIND, "bpf")
}

/// The filters of a device.
pub fn filters(route: &mut Socket, link: u32, direction: Direction) -> Result<Vec<Filter>> {
    let doing = format!("list filters of link number {link}");
    let message = Message::new(libc::RTM_GETTFILTER, 0, doing).raw(&header(link, 0, direction.parent(), 0));
    let mut all = route.list(message, read)?;
    // The kernel also lists the chain of filters itself, without a handle.
    all.retain(|(handle, _)| *handle != 0);
    Ok(all.into_iter().map(|(_, filter)| filter).collect())
}

/// A filter that was added or deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterEvent {
    /// The number of the link.
    pub link: u32,
    /// Whether it was deleted.
    pub is_deletion: bool,
    /// Whether the filter has the priority of [`set`].
    pub is_program: bool,
}

impl FilterEvent {
    /// Reads an event.
    pub fn read(frame: Frame<'_>) -> Option<FilterEvent> {
        let is_deletion = frame.kind == libc::RTM_DELTFILTER;
        if !is_deletion && frame.kind != libc::RTM_NEWTFILTER {
            return None;
        }
        let word = |at: usize| Some(u32::from_ne_bytes(frame.body.get(at..at + 4)?.try_into().ok()?));
        Some(FilterEvent { link: word(4)?, is_deletion, is_program: word(16)? >> 16 == PRIORITY })
    }
}

fn read(frame: Frame<'_>) -> Option<(u32, Filter)> {
    if frame.kind != libc::RTM_NEWTFILTER {
        return None;
    }
    let handle = u32::from_ne_bytes(frame.body.get(8..12)?.try_into().ok()?);
    let mut filter = Filter::default();
    for attr in frame.attrs(20) {
        match attr.kind {
            TCA_KIND => filter.kind = attr.string(),
            TCA_OPTIONS if filter.kind == "bpf" => {
                for option in attr.nested() {
                    match option.kind {
                        BPF_NAME => filter.name = option.string(),
                        BPF_ID => filter.program = option.u32(),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    Some((handle, filter))
}
