//! The nftables chain that marks packets whose flow the programs may learn: those of established connections whose
//! addresses and ports are not rewritten, after all other chains of the hook have accepted them.

use std::collections::BTreeSet;

use podwire_kernel::fast_path::TABLE;
use podwire_netlink::nft::{
    self, Base, ChainKind, Element, Field, Hook, Rule, Set, Transaction, Type, Value,
};
use podwire_netlink::Socket;

use crate::error::Result;

/// The mark of a packet whose flow may be learned. The same number is in fast_path.bpf.c.
pub const LEARN: u32 = 0x0200_0000;
/// The devices whose outgoing packets are marked.
const DEVICES: &str = "fast_devices";
/// After all filters.
const FORWARD: Base = Base::new(ChainKind::Filter, Hook::Forward, 300);
/// A packet of such a connection takes the normal path: NAT and helpers must see it.
const REWRITTEN: u32 = Rule::SNAT | Rule::DNAT | Rule::SEQUENCE_ADJUSTED | Rule::HELPER;

/// Makes the table as desired. Returns whether it was changed.
pub(crate) fn apply(nft: &mut Socket, devices: &BTreeSet<u32>) -> Result<bool> {
    let mut change = skeleton();
    if change.absent(nft)?.is_empty() {
        change = Transaction::new();
    }
    let element = |index: u32| Element::key(Value::ifindex(index));
    let present: BTreeSet<u32> = match nft::has_set(nft, &TABLE, DEVICES)? {
        true => nft::list_elements(nft, &TABLE, DEVICES)?.iter().filter_map(index).collect(),
        false => BTreeSet::new(),
    };
    let (missing, stale) = (devices.difference(&present), present.difference(devices));
    change.delete_elements(&TABLE, DEVICES, &stale.map(|index| element(*index)).collect::<Vec<_>>());
    change.add_elements(&TABLE, DEVICES, &missing.map(|index| element(*index)).collect::<Vec<_>>());
    if change.is_empty() {
        return Ok(false);
    }
    change.commit(nft)?;
    Ok(true)
}

fn skeleton() -> Transaction {
    let mut change = Transaction::new();
    change.add_table(&TABLE);
    change.add_set(&TABLE, &Set::of(DEVICES, &[Type::IfIndex]));
    change.add_base_chain(&TABLE, "forward", &FORWARD);
    change.flush_chain(&TABLE, "forward");
    let accepted = Rule::new()
        .any_bit(Field::CtState, Rule::ESTABLISHED)
        .only_bits(Field::CtStatus, Rule::ASSURED | REWRITTEN, Rule::ASSURED)
        .in_set(&[Field::IndexOut], DEVICES);
    change.add_rule(&TABLE, "forward", &accepted.set_mark_bits(LEARN));
    change
}

fn index(element: &Element) -> Option<u32> {
    element.key.bytes().try_into().ok().map(u32::from_ne_bytes)
}
