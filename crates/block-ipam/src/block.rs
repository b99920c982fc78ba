//! A block: consecutive addresses and their holders.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use podwire_ip::to_u128;
use serde::{Deserialize, Serialize};

use super::json::{self, Unknown};
use super::record::Value;
use super::{AffinityOwner, Attribute, Reservations};
use crate::timestamp::Timestamp;

/// The maximum number of host bits. A full block of this size is a record of 20 MB (docs/ipam.md, Limits).
const MAX_HOST_BITS: u8 = 16;

/// Consecutive addresses and their holders. This record is the only authority about an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    cidr: IpNet,
    affinity: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    affinity_claim_time: Option<String>,
    /// For each ordinal, the index of its attribute; `null` if the address is free.
    #[serde(deserialize_with = "json::null_is_empty")]
    allocations: Vec<Option<usize>>,
    /// The free ordinals. The one that has been free longest comes first.
    #[serde(deserialize_with = "json::null_is_empty")]
    unallocated: Vec<usize>,
    #[serde(deserialize_with = "json::null_is_empty")]
    attributes: Vec<Attribute>,
    #[serde(rename = "sequenceNumber", default)]
    sequence_number: u64,
    /// For each ordinal in use, the block's sequence number at its assignment. A new assignment has another number.
    #[serde(rename = "sequenceNumberForAllocation", default, deserialize_with = "json::null_is_empty")]
    sequence_number_for_allocation: BTreeMap<String, u64>,
    #[serde(default)]
    deleted: bool,
    /// The name of `affinity` in very old versions of Calico.
    #[serde(rename = "hostAffinity", default, skip_serializing_if = "Option::is_none")]
    host_affinity: Option<String>,
    #[serde(flatten)]
    unknown: Unknown,
}

/// An address in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation<'a> {
    /// The address.
    pub ip: IpAddr,
    /// Its holder.
    pub attribute: &'a Attribute,
    /// The block's sequence number at the assignment; 0 if unknown.
    pub sequence: u64,
}

impl Block {
    /// A new block with all addresses free. Sequence numbers begin at the current time, so that a block that is created
    /// again does not reuse one.
    pub(super) fn new(cidr: IpNet, owner: &AffinityOwner, now: Timestamp) -> Block {
        let size = 1 << (cidr.max_prefix_len() - cidr.prefix_len()).min(MAX_HOST_BITS);
        Block {
            cidr,
            affinity: Some(owner.to_string()),
            affinity_claim_time: Some(now.rfc3339()),
            allocations: vec![None; size],
            unallocated: (0..size).collect(),
            attributes: Vec::new(),
            sequence_number: now.unix_nanos(),
            sequence_number_for_allocation: BTreeMap::new(),
            deleted: false,
            host_affinity: None,
            unknown: Unknown::new(),
        }
    }

    /// The CIDR.
    pub fn cidr(&self) -> IpNet {
        self.cidr
    }

    /// The owner, if there is one.
    pub fn owner(&self) -> Option<AffinityOwner> {
        let legacy = || self.host_affinity.clone().map(AffinityOwner::Host);
        self.affinity.as_deref().and_then(AffinityOwner::parse).or_else(legacy)
    }

    /// The name of the node that owns it.
    pub(super) fn owner_name(&self) -> Option<&str> {
        self.affinity
            .as_deref()
            .and_then(|owner| owner.strip_prefix("host:"))
            .or(self.host_affinity.as_deref())
    }

    /// Removes the owner.
    pub(super) fn remove_owner(&mut self) {
        (self.affinity, self.host_affinity, self.affinity_claim_time) = (None, None, None);
    }

    /// When its owner claimed it, if known.
    pub(super) fn claimed_at(&self) -> Option<Timestamp> {
        self.affinity_claim_time.as_deref().and_then(Timestamp::parse_rfc3339)
    }

    /// The sequence number, which changes with every write.
    pub fn sequence(&self) -> u64 {
        self.sequence_number
    }

    /// Increases the sequence number. Must be called before every write.
    pub(super) fn increment_sequence(&mut self) {
        self.sequence_number = self.sequence_number.wrapping_add(1);
    }

    /// The number of addresses.
    pub fn size(&self) -> usize {
        self.allocations.len()
    }

    /// Whether no address is in use. An address that cools down counts as in use.
    pub fn is_empty(&self) -> bool {
        self.allocations().all(|allocation| allocation.attribute.is_reserved())
    }

    /// The addresses in use or cooling down, in their order.
    pub fn allocations(&self) -> impl Iterator<Item = Allocation<'_>> {
        self.allocations.iter().enumerate().filter_map(|(ordinal, index)| {
            let attribute = self.attributes.get((*index)?)?;
            Some(Allocation { ip: self.address(ordinal), attribute, sequence: self.sequence_of(ordinal) })
        })
    }

    /// The allocation of an address, if it is in use.
    pub fn allocation(&self, ip: IpAddr) -> Option<Allocation<'_>> {
        self.allocations().find(|allocation| allocation.ip == ip)
    }

    /// The number of assignable addresses.
    pub fn free(&self, reservations: &Reservations) -> usize {
        self.unallocated.iter().filter(|ordinal| !reservations.contains(self.address(**ordinal))).count()
    }

    /// Assigns up to `count` free addresses that are not reserved, those first that have been free longest.
    pub(super) fn assign(
        &mut self,
        count: usize,
        holder: &Attribute,
        reservations: &Reservations,
    ) -> Vec<IpAddr> {
        let free = std::mem::take(&mut self.unallocated);
        let mut assigned = Vec::new();
        for ordinal in free {
            let ip = self.address(ordinal);
            if assigned.len() < count && !reservations.contains(ip) {
                self.set_holder(ordinal, holder);
                assigned.push(ip);
            } else {
                self.unallocated.push(ordinal);
            }
        }
        assigned
    }

    /// Assigns a specific address, reserved or not. Returns whether it was free.
    pub(super) fn assign_address(&mut self, ip: IpAddr, holder: &Attribute) -> bool {
        let wanted = self.ordinal(ip);
        let Some(position) = self.unallocated.iter().position(|ordinal| Some(*ordinal) == wanted) else {
            return false;
        };
        let ordinal = self.unallocated.remove(position);
        self.set_holder(ordinal, holder);
        true
    }

    /// Reassigns an address to another holder, with a new sequence number.
    pub(super) fn reassign(&mut self, ip: IpAddr, holder: &Attribute) {
        if let Some(ordinal) = self.ordinal(ip) {
            self.set_holder(ordinal, holder);
            self.compact();
        }
    }

    /// Releases addresses. With a `cooldown` of 0 they are free at once; otherwise they cool down first.
    pub(super) fn release(&mut self, ips: &[IpAddr], now: Timestamp, cooldown: u64) {
        for ip in ips {
            let Some(ordinal) = self.ordinal(*ip).filter(|ordinal| self.allocations[*ordinal].is_some())
            else {
                continue;
            };
            self.sequence_number_for_allocation.remove(&ordinal.to_string());
            self.allocations[ordinal] = match cooldown {
                0 => {
                    self.unallocated.push(ordinal);
                    None
                }
                _ => Some(self.attribute_index(&Attribute::in_cooldown(now))),
            };
        }
        self.compact();
    }

    /// Frees addresses whose cooldown is over.
    pub(super) fn free_cooled_down(&mut self, now: Timestamp, cooldown: u64) {
        let cooled: Vec<IpAddr> = self
            .allocations()
            .filter(|allocation| allocation.attribute.is_cooled_down(now, cooldown))
            .map(|allocation| allocation.ip)
            .collect();
        if !cooled.is_empty() {
            self.release(&cooled, now, 0);
        }
    }

    /// The addresses of a handle.
    pub fn of_handle(&self, handle: &str) -> Vec<IpAddr> {
        let of = self.allocations().filter(|allocation| allocation.attribute.handle() == Some(handle));
        of.map(|allocation| allocation.ip).collect()
    }

    /// Whether the address is in this block.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.cidr.contains(&ip)
    }

    fn set_holder(&mut self, ordinal: usize, holder: &Attribute) {
        self.allocations[ordinal] = Some(self.attribute_index(holder));
        self.sequence_number_for_allocation.insert(ordinal.to_string(), self.sequence_number);
    }

    /// The index of an attribute, which is added if it does not exist.
    fn attribute_index(&mut self, wanted: &Attribute) -> usize {
        self.attributes.iter().position(|attribute| attribute == wanted).unwrap_or_else(|| {
            self.attributes.push(wanted.clone());
            self.attributes.len() - 1
        })
    }

    /// Removes unused attributes and renumbers the others.
    fn compact(&mut self) {
        let mut kept = vec![None; self.attributes.len()];
        for index in self.allocations.iter().flatten() {
            kept[*index] = Some(0);
        }
        let (mut next, mut position) = (0, 0);
        for slot in kept.iter_mut().flatten() {
            *slot = next;
            next += 1;
        }
        self.attributes.retain(|_| {
            position += 1;
            kept[position - 1].is_some()
        });
        for index in self.allocations.iter_mut().flatten() {
            *index = kept[*index].unwrap_or_default();
        }
    }

    fn sequence_of(&self, ordinal: usize) -> u64 {
        self.sequence_number_for_allocation.get(&ordinal.to_string()).copied().unwrap_or(0)
    }

    fn address(&self, ordinal: usize) -> IpAddr {
        let number = to_u128(self.cidr.addr()) + ordinal as u128;
        match self.cidr {
            IpNet::V4(_) => Ipv4Addr::from_bits(number as u32).into(),
            IpNet::V6(_) => Ipv6Addr::from_bits(number).into(),
        }
    }

    fn ordinal(&self, ip: IpAddr) -> Option<usize> {
        self.contains(ip).then(|| (to_u128(ip) - to_u128(self.cidr.addr())) as usize)
    }

    /// Checks that every address is either free or in use, and that all referenced attributes exist.
    fn validate(&self) -> Result<(), String> {
        let bits = self.cidr.max_prefix_len() - self.cidr.prefix_len();
        if self.cidr.addr() != self.cidr.network() || bits > MAX_HOST_BITS {
            return Err(format!("{} is not a block", self.cidr));
        }
        if self.allocations.len() != 1 << bits {
            return Err(format!("it has {} addresses but {} allocations", 1 << bits, self.allocations.len()));
        }
        if let Some(index) = self.allocations.iter().flatten().find(|index| **index >= self.attributes.len())
        {
            return Err(format!("an address refers to attribute {index} of {}", self.attributes.len()));
        }
        let mut is_free = vec![false; self.allocations.len()];
        for ordinal in &self.unallocated {
            match self.allocations.get(*ordinal) {
                Some(None) if !is_free[*ordinal] => is_free[*ordinal] = true,
                _ => {
                    return Err(format!(
                        "address {ordinal} is free twice, free and in use, or outside of the block"
                    ))
                }
            }
        }
        let lost = |(ordinal, index): (usize, &Option<usize>)| index.is_none() && !is_free[ordinal];
        match self.allocations.iter().enumerate().position(lost) {
            Some(ordinal) => Err(format!("address {ordinal} is neither free nor in use")),
            None => Ok(()),
        }
    }
}

impl Value for Block {
    fn decode(bytes: &[u8]) -> Result<Block, String> {
        let block: Block = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        block.validate()?;
        Ok(block)
    }

    fn encode(&self) -> Result<Vec<u8>, String> {
        json::encode(self).map_err(|error| error.to_string())
    }

    fn is_deleted(&self) -> bool {
        self.deleted
    }
}

#[cfg(test)]
mod tests;
