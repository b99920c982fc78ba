//! rtnetlink: links, addresses, neighbours, routes, rules and traffic control of one namespace.

pub mod address;
pub mod link;
pub mod neighbour;
pub mod route;
pub mod rule;
pub mod tc;

use std::net::IpAddr;

/// Group of link notices (`RTNLGRP_LINK`).
pub const GROUP_LINK: u32 = 1;
/// Group of notices about neighbours and forwarding databases (`RTNLGRP_NEIGH`).
pub const GROUP_NEIGHBOUR: u32 = 3;
/// Groups of notices about addresses (`RTNLGRP_IPV4_IFADDR`, `RTNLGRP_IPV6_IFADDR`).
pub const GROUPS_ADDRESS: [u32; 2] = [5, 9];
/// Groups of notices about routes (`RTNLGRP_IPV4_ROUTE`, `RTNLGRP_IPV6_ROUTE`).
pub const GROUPS_ROUTE: [u32; 2] = [7, 11];

/// Flags of a request that makes a new object and fails if it is there.
pub const CREATE: u16 = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
/// Flags of a request that makes an object or takes over the one that is there.
pub const REPLACE: u16 = (libc::NLM_F_CREATE | libc::NLM_F_REPLACE) as u16;
/// Flags of a request that adds an object before others of its kind.
pub const PREPEND: u16 = libc::NLM_F_CREATE as u16;
/// Flags of a request that adds an object behind others of its kind (equal routes become one of many paths).
pub const APPEND: u16 = (libc::NLM_F_CREATE | libc::NLM_F_APPEND) as u16;

/// `AF_INET` or `AF_INET6`.
pub fn family(ip: &IpAddr) -> u8 {
    match ip {
        IpAddr::V4(_) => libc::AF_INET as u8,
        IpAddr::V6(_) => libc::AF_INET6 as u8,
    }
}
