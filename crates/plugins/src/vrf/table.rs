//! The routing table of a VRF.

use std::collections::HashSet;

use podwire_cni_plugin::{Error, Result};
use podwire_kernel::rt::{link, route, rule};
use podwire_kernel::{vrf, Host};

/// Reserved numbers (`rt_class_t`, linux/rtnetlink.h): unspecified, compat ("see the attribute"), default, main and
/// local.
const RESERVED: [u32; 5] = [0, 252, 253, 254, 255];

/// Fails for a reserved table. 0 is allowed: it selects a free table.
pub fn check(table: u32) -> Result<()> {
    if table == 0 || !RESERVED.contains(&table) {
        return Ok(());
    }
    let text = format!("table: {table} is one of the system's own tables");
    Err(podwire_cni_spec::Error::invalid_config(text)
        .with_details("choose another, or 0 for a free one")
        .into())
}

/// The lowest table that no VRF, route or rule in `pod` uses.
pub fn free(pod: &mut Host) -> Result<u32> {
    let mut taken: HashSet<u32> = RESERVED.into();
    taken.extend(link::list(&mut pod.route)?.iter().filter_map(vrf::table));
    taken.extend(route::list(&mut pod.route)?.iter().map(|route| route.table));
    taken.extend(rule::tables(&mut pod.route)?);
    lowest(&taken).ok_or_else(none_left)
}

fn lowest(taken: &HashSet<u32>) -> Option<u32> {
    (1..u32::MAX).find(|table| !taken.contains(table))
}

fn none_left() -> Error {
    podwire_cni_spec::Error::internal("table: no routing table is free in the pod").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_table_is_not_reserved() {
        assert_eq!(lowest(&RESERVED.into()), Some(1));
        assert_eq!(lowest(&[0, 1, 2, 4].into()), Some(3));
        let taken: HashSet<u32> = (1..252).chain(RESERVED).collect();
        assert_eq!(lowest(&taken), Some(256));
    }

    #[test]
    fn reserved_tables_are_refused() {
        assert!([0, 1, 100, 256, u32::MAX].iter().all(|table| check(*table).is_ok()));
        assert!([252, 253, 254, 255].iter().all(|table| check(*table).is_err()));
    }
}
