//! A block: a few dozen addresses next to each other, and who has which.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::json::{self, Unknown};
use super::record::Value;
use super::{AffinityOwner, Attribute, Reservations};
use crate::timestamp::Timestamp;
use podwire_ip::to_u128 as number;

/// The largest block that makes sense: more, and every pod's start would move a megabyte.
const MOST_BITS: u8 = 16;

/// Addresses next to each other, and who has which. This record is the only truth about an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    cidr: IpNet,
    affinity: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    affinity_claim_time: Option<String>,
    /// For each address, by its ordinal: which attribute is its; `null` if it is free.
    #[serde(deserialize_with = "json::null_is_empty")]
    allocations: Vec<Option<usize>>,
    /// The free ordinals, the one that has been free for the longest time first.
    #[serde(deserialize_with = "json::null_is_empty")]
    unallocated: Vec<usize>,
    #[serde(deserialize_with = "json::null_is_empty")]
    attributes: Vec<Attribute>,
    #[serde(rename = "sequenceNumber", default)]
    sequence_number: u64,
    /// For each ordinal in use: the block's number when it was given. An address that was given again has another.
    #[serde(rename = "sequenceNumberForAllocation", default, deserialize_with = "json::null_is_empty")]
    sequence_number_for_allocation: BTreeMap<String, u64>,
    #[serde(default)]
    deleted: bool,
    /// How a very old Calico spelled `affinity`.
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
    /// Who has it.
    pub attribute: &'a Attribute,
    /// The block's number when it was given; 0 if it was not written down.
    pub sequence: u64,
}

impl Block {
    /// A new block, all of it free. Its numbers begin with the time, so that a block that is made again after it was
    /// deleted does not use one twice.
    pub(super) fn new(cidr: IpNet, owner: &AffinityOwner, now: Timestamp) -> Block {
        let size = 1 << (cidr.max_prefix_len() - cidr.prefix_len()).min(MOST_BITS);
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

    /// Its addresses.
    pub fn cidr(&self) -> IpNet {
        self.cidr
    }

    /// Whose it is, if anybody's.
    pub fn owner(&self) -> Option<AffinityOwner> {
        let legacy = || self.host_affinity.clone().map(AffinityOwner::Host);
        self.affinity.as_deref().and_then(AffinityOwner::parse).or_else(legacy)
    }

    /// The name of the node whose it is.
    pub(super) fn owner_name(&self) -> Option<&str> {
        self.affinity
            .as_deref()
            .and_then(|owner| owner.strip_prefix("host:"))
            .or(self.host_affinity.as_deref())
    }

    /// It is nobody's from now on.
    pub(super) fn disown(&mut self) {
        (self.affinity, self.host_affinity, self.affinity_claim_time) = (None, None, None);
    }

    /// When its owner claimed it, if that was written down.
    pub(super) fn claimed_at(&self) -> Option<Timestamp> {
        self.affinity_claim_time.as_deref().and_then(Timestamp::parse_rfc3339)
    }

    /// Its number, which changes with every write.
    pub fn sequence(&self) -> u64 {
        self.sequence_number
    }

    /// To be called before every write: whoever read the block earlier can tell.
    pub(super) fn count_write(&mut self) {
        self.sequence_number = self.sequence_number.wrapping_add(1);
    }

    /// How many addresses it has.
    pub fn size(&self) -> usize {
        self.allocations.len()
    }

    /// Whether nobody has an address of it. One that is cooling down still counts as somebody's.
    pub fn is_empty(&self) -> bool {
        self.allocations().all(|allocation| allocation.attribute.is_reserved())
    }

    /// The addresses in use and those that are cooling down, in their order.
    pub fn allocations(&self) -> impl Iterator<Item = Allocation<'_>> {
        self.allocations.iter().enumerate().filter_map(|(ordinal, index)| {
            let attribute = self.attributes.get((*index)?)?;
            Some(Allocation { ip: self.address(ordinal), attribute, sequence: self.sequence_of(ordinal) })
        })
    }

    /// What is known about an address, if it is in use.
    pub fn allocation(&self, ip: IpAddr) -> Option<Allocation<'_>> {
        self.allocations().find(|allocation| allocation.ip == ip)
    }

    /// How many addresses may be given.
    pub fn free(&self, reservations: &Reservations) -> usize {
        self.unallocated.iter().filter(|ordinal| !reservations.contains(self.address(**ordinal))).count()
    }

    /// Takes up to `count` free addresses that are not reserved, those that have been free for the longest time.
    pub(super) fn take(&mut self, count: usize, who: &Attribute, reservations: &Reservations) -> Vec<IpAddr> {
        let free = std::mem::take(&mut self.unallocated);
        let mut taken = Vec::new();
        for ordinal in free {
            let ip = self.address(ordinal);
            match taken.len() < count && !reservations.contains(ip) {
                true => {
                    self.give(ordinal, who);
                    taken.push(ip);
                }
                false => self.unallocated.push(ordinal),
            }
        }
        taken
    }

    /// Takes this very address, reserved or not. Whether it was free.
    pub(super) fn take_address(&mut self, ip: IpAddr, who: &Attribute) -> bool {
        let wanted = self.ordinal(ip);
        let Some(place) = self.unallocated.iter().position(|ordinal| Some(*ordinal) == wanted) else {
            return false;
        };
        let ordinal = self.unallocated.remove(place);
        self.give(ordinal, who);
        true
    }

    /// An address that somebody has goes to another, as if it had just been given.
    pub(super) fn give_instead(&mut self, ip: IpAddr, who: &Attribute) {
        if let Some(ordinal) = self.ordinal(ip) {
            self.give(ordinal, who);
            self.compact();
        }
    }

    /// Gives addresses back. Those of `cooldown` 0 are free at once; else they cool down first.
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
                _ => Some(self.attribute(&Attribute::cooling(now))),
            };
        }
        self.compact();
    }

    /// Frees what has cooled down.
    pub(super) fn free_cooled_down(&mut self, now: Timestamp, cooldown: u64) {
        let cold: Vec<IpAddr> = self
            .allocations()
            .filter(|allocation| allocation.attribute.is_cooled_down(now, cooldown))
            .map(|allocation| allocation.ip)
            .collect();
        if !cold.is_empty() {
            self.release(&cold, now, 0);
        }
    }

    /// The addresses of a handle.
    pub fn of_handle(&self, handle: &str) -> Vec<IpAddr> {
        let of = self.allocations().filter(|allocation| allocation.attribute.handle() == Some(handle));
        of.map(|allocation| allocation.ip).collect()
    }

    /// Whether the address lies in this block.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.cidr.contains(&ip)
    }

    fn give(&mut self, ordinal: usize, who: &Attribute) {
        self.allocations[ordinal] = Some(self.attribute(who));
        self.sequence_number_for_allocation.insert(ordinal.to_string(), self.sequence_number);
    }

    /// The index of an attribute that equals `wanted`, which is added if there is none.
    fn attribute(&mut self, wanted: &Attribute) -> usize {
        self.attributes.iter().position(|attribute| attribute == wanted).unwrap_or_else(|| {
            self.attributes.push(wanted.clone());
            self.attributes.len() - 1
        })
    }

    /// Drops attributes that no address has, and counts the others anew.
    fn compact(&mut self) {
        let mut kept = vec![None; self.attributes.len()];
        for index in self.allocations.iter().flatten() {
            kept[*index] = Some(0);
        }
        let (mut next, mut place) = (0, 0);
        for slot in kept.iter_mut().flatten() {
            *slot = next;
            next += 1;
        }
        self.attributes.retain(|_| {
            place += 1;
            kept[place - 1].is_some()
        });
        for index in self.allocations.iter_mut().flatten() {
            *index = kept[*index].unwrap_or_default();
        }
    }

    fn sequence_of(&self, ordinal: usize) -> u64 {
        self.sequence_number_for_allocation.get(&ordinal.to_string()).copied().unwrap_or(0)
    }

    fn address(&self, ordinal: usize) -> IpAddr {
        let number = number(self.cidr.addr()) + ordinal as u128;
        match self.cidr {
            IpNet::V4(_) => Ipv4Addr::from_bits(number as u32).into(),
            IpNet::V6(_) => Ipv6Addr::from_bits(number).into(),
        }
    }

    fn ordinal(&self, ip: IpAddr) -> Option<usize> {
        self.contains(ip).then(|| (number(ip) - number(self.cidr.addr())) as usize)
    }

    /// Whether every address is either free or somebody's, and every attribute that is referred to is there.
    fn validate(&self) -> Result<(), String> {
        let bits = self.cidr.max_prefix_len() - self.cidr.prefix_len();
        if self.cidr.addr() != self.cidr.network() || bits > MOST_BITS {
            return Err(format!("{} is no block", self.cidr));
        }
        if self.allocations.len() != 1 << bits {
            return Err(format!(
                "it has {} addresses, and allocations for {}",
                1 << bits,
                self.allocations.len()
            ));
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
                    return Err(format!("address {ordinal} is free twice, or free and in use, or not there"))
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
