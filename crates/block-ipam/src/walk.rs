//! The order in which a node tries the blocks of a pool. Each node begins at another block, so that nodes that need a
//! block at the same time rarely try the same one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use podwire_ip::{to_u128, IpFamily};

use super::{AffinityOwner, Pool, Reservations};
use crate::timestamp::Timestamp;

/// Iterates over all blocks of a pool once, except those that are completely reserved.
pub(super) struct Walk<'a> {
    base: u128,
    length: u8,
    family: IpFamily,
    /// The number of host bits of a block.
    bits: u8,
    /// The index of the last block. (The number of blocks of `::/0` does not fit.)
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
        // A node always begins at the same block, unless a block is a single address.
        let seed = match bits {
            0 => u128::from(now.unix_nanos()),
            _ => u128::from(fnv32(owner.name())),
        };
        let next = last.checked_add(1).map_or(seed, |count| seed % count);
        let (base, family) = (to_u128(cidr.addr()), pool.family());
        Walk { base, length, family, bits, last, next, left: Some(last), reservations }
    }

    fn block(&self, index: u128) -> Option<IpNet> {
        let number = self.base + (index << self.bits);
        let ip = match self.family {
            IpFamily::V4 => IpAddr::from(Ipv4Addr::from_bits(number as u32)),
            IpFamily::V6 => IpAddr::from(Ipv6Addr::from_bits(number)),
        };
        IpNet::new(ip, self.length).ok()
    }

    fn advance(&mut self, steps: u128) {
        self.left = self.left.and_then(|left| left.checked_sub(steps));
        self.next = if self.last - self.next >= steps { self.next + steps } else { 0 };
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
            // A reservation may span very many blocks: skip all of them in the pool at once.
            let end = to_u128(reserved.broadcast()).saturating_sub(self.base) >> self.bits;
            self.advance((end.min(self.last) - self.next).saturating_add(1));
        }
    }
}

/// 32-bit FNV-1, the seed of Calico's order.
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
    fn every_block_is_visited_once() {
        let mut all = blocks("10.0.0.0/24", 26, &[]);
        let first = all[0].clone();
        all.sort();
        assert_eq!(all, ["10.0.0.0/26", "10.0.0.128/26", "10.0.0.192/26", "10.0.0.64/26"]);
        assert_eq!(blocks("10.0.0.0/24", 26, &[])[0], first, "a node always begins at the same block");
        assert_eq!(blocks("10.0.0.0/26", 26, &[]), ["10.0.0.0/26"]);
        assert_eq!(blocks("10.0.0.4/31", 32, &[]), ["10.0.0.5/32", "10.0.0.4/32"]);
    }

    #[test]
    fn the_hash_is_calicos() {
        assert_eq!((fnv32(""), fnv32("a")), (0x811c_9dc5, 0x050c_5d7e));
    }

    #[test]
    fn completely_reserved_blocks_are_skipped() {
        let mut some = blocks("10.0.0.0/24", 26, &["10.0.0.0/25", "10.0.0.192/32"]);
        some.sort();
        assert_eq!(some, ["10.0.0.128/26", "10.0.0.192/26"]);
        assert!(blocks("10.0.0.0/24", 26, &["10.0.0.0/8"]).is_empty());
    }

    #[test]
    fn a_huge_pool_is_not_materialized() {
        let most = ["fd00::/9", "fd80::/10", "fdc0::/11", "fde0::/12"];
        let some = blocks("fd00::/8", 122, &most);
        assert_eq!(some.len(), 100);
        assert!(some.iter().all(|block| block.starts_with("fdf")), "{some:?}");
        assert_eq!(blocks("::/0", 128, &[]).len(), 100);
    }
}
