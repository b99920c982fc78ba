//! The blocks of a pool, one after the other, each node beginning at a place of its own: nodes that need a block at the same
//! moment seldom reach for the same one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::{AffinityOwner, Pool, Reservations};
use crate::timestamp::Timestamp;
use podwire_ip::to_u128 as number;

/// All blocks of a pool once, but for those that are reserved as a whole.
pub(super) struct Walk<'a> {
    base: u128,
    length: u8,
    is_v4: bool,
    /// How many addresses a block has, as a power of two.
    bits: u8,
    /// How many blocks there are, less one: the number of all blocks of `::/0` does not fit.
    last: u128,
    next: u128,
    left: Option<u128>,
    reservations: &'a Reservations,
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        pool: &Pool,
        owner: &AffinityOwner,
        now: Timestamp,
        reservations: &'a Reservations,
    ) -> Walk<'a> {
        let (cidr, length) = (pool.cidr(), pool.block_size());
        let last = u128::MAX.checked_shr(128 - u32::from(length - cidr.prefix_len())).unwrap_or(0);
        let bits = pool.family().bits() - length;
        // A node is better off beside its other addresses, unless a block is one address only.
        let seed = match bits {
            0 => u128::from(now.unix_nanos()),
            _ => u128::from(fnv32(owner.name())),
        };
        let next = last.checked_add(1).map_or(seed, |count| seed % count);
        let is_v4 = cidr.addr().is_ipv4();
        Walk { base: number(cidr.addr()), length, is_v4, bits, last, next, left: Some(last), reservations }
    }

    fn block(&self, index: u128) -> Option<IpNet> {
        let number = self.base + (index << self.bits);
        let ip = match self.is_v4 {
            true => IpAddr::from(Ipv4Addr::from_bits(number as u32)),
            false => IpAddr::from(Ipv6Addr::from_bits(number)),
        };
        IpNet::new(ip, self.length).ok()
    }

    fn advance(&mut self, steps: u128) {
        self.left = self.left.and_then(|left| left.checked_sub(steps));
        self.next = match self.last - self.next >= steps {
            true => self.next + steps,
            false => 0,
        };
    }
}

impl Iterator for Walk<'_> {
    type Item = IpNet;

    fn next(&mut self) -> Option<IpNet> {
        loop {
            self.left?;
            let block = self.block(self.next)?;
            let Some(reserved) = self.reservations.covering(block) else {
                self.advance(1);
                return Some(block);
            };
            // A reservation may span more blocks than anybody can count: step over all of it, as far as the pool goes.
            let end = number(reserved.broadcast()).saturating_sub(self.base) >> self.bits;
            self.advance((end.min(self.last) - self.next).saturating_add(1));
        }
    }
}

/// FNV-1 of 32 bits, which Calico seeds its own order with.
fn fnv32(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash: u32, byte| hash.wrapping_mul(0x0100_0193) ^ u32::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_unix_nanos(7);

    fn blocks(cidr: &str, length: u8, reserved: &[&str]) -> Vec<String> {
        let pool = Pool::new("pool", cidr.parse().unwrap()).with_block_size(length);
        let reservations = Reservations::new(reserved.iter().map(|net| net.parse().unwrap()));
        let walk = Walk::new(&pool, &AffinityOwner::host("node1"), NOW, &reservations);
        walk.take(100).map(|net| net.to_string()).collect()
    }

    #[test]
    fn every_block_comes_once_wherever_the_walk_begins() {
        let mut all = blocks("10.0.0.0/24", 26, &[]);
        let first = all[0].clone();
        all.sort();
        assert_eq!(all, ["10.0.0.0/26", "10.0.0.128/26", "10.0.0.192/26", "10.0.0.64/26"]);
        assert_eq!(blocks("10.0.0.0/24", 26, &[])[0], first, "a node always begins at the same place");
        assert_eq!(blocks("10.0.0.0/26", 26, &[]), ["10.0.0.0/26"]);
        assert_eq!(blocks("10.0.0.4/31", 32, &[]), ["10.0.0.5/32", "10.0.0.4/32"]);
    }

    #[test]
    fn the_hash_is_calicos() {
        assert_eq!((fnv32(""), fnv32("a")), (0x811c_9dc5, 0x050c_5d7e));
    }

    #[test]
    fn what_is_reserved_as_a_whole_is_stepped_over() {
        let mut some = blocks("10.0.0.0/24", 26, &["10.0.0.0/25", "10.0.0.192/32"]);
        some.sort();
        assert_eq!(some, ["10.0.0.128/26", "10.0.0.192/26"]);
        assert!(blocks("10.0.0.0/24", 26, &["10.0.0.0/8"]).is_empty());
    }

    #[test]
    fn more_blocks_than_can_be_counted_are_no_trouble() {
        let most = ["fd00::/9", "fd80::/10", "fdc0::/11", "fde0::/12"];
        let some = blocks("fd00::/8", 122, &most);
        assert_eq!(some.len(), 100);
        assert!(some.iter().all(|block| block.starts_with("fdf")), "{some:?}");
        assert_eq!(blocks("::/0", 128, &[]).len(), 100);
    }
}
