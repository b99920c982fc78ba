//! rtnetlink: links, addresses, neighbours, routes, rules and traffic control of one namespace.

pub mod address;
pub mod link;
pub mod neighbour;
pub mod route;
pub mod rule;
pub mod tc;

use podwire_ip::IpFamily;

/// The group of link notices (`RTNLGRP_LINK`).
pub const GROUP_LINK: u32 = 1;
/// The group of notices about neighbours and forwarding databases (`RTNLGRP_NEIGH`).
pub const GROUP_NEIGHBOUR: u32 = 3;
/// The group of notices about traffic control (`RTNLGRP_TC`).
pub const GROUP_TC: u32 = 4;
/// The groups of notices about addresses (`RTNLGRP_IPV4_IFADDR`, `RTNLGRP_IPV6_IFADDR`).
pub const GROUPS_ADDRESS: [u32; 2] = [5, 9];
/// The groups of notices about routes (`RTNLGRP_IPV4_ROUTE`, `RTNLGRP_IPV6_ROUTE`).
pub const GROUPS_ROUTE: [u32; 2] = [7, 11];

/// Flags of a request that creates an object and fails if it exists.
pub const CREATE: u16 = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
/// Flags of a request that creates an object or replaces the existing one.
pub const REPLACE: u16 = (libc::NLM_F_CREATE | libc::NLM_F_REPLACE) as u16;
/// Flags of a request that adds an object before others with the same key.
pub const PREPEND: u16 = libc::NLM_F_CREATE as u16;
/// Flags of a request that adds an object after others with the same key (IPv6 routes become multipath).
pub const APPEND: u16 = (libc::NLM_F_CREATE | libc::NLM_F_APPEND) as u16;

/// `AF_INET` or `AF_INET6`.
pub fn address_family(family: IpFamily) -> u8 {
    match family {
        IpFamily::V4 => libc::AF_INET as u8,
        IpFamily::V6 => libc::AF_INET6 as u8,
    }
}
