//! The sysctls of conntrack that the fast path needs.

use podwire_kernel::sysctl;

use crate::error::{Error, Result};

/// Conntrack does not see the packets that programs redirect, so the next one that it sees is ahead of its window. The
/// second key is for RST: without it, an RST after more than 2 GB counts as forged.
const LIBERAL: [&str; 2] =
    ["net/netfilter/nf_conntrack_tcp_be_liberal", "net/netfilter/nf_conntrack_tcp_ignore_invalid_rst"];

/// Fails if the kernel lacks a sysctl, or if it cannot be set.
pub(crate) fn make_conntrack_liberal() -> Result<()> {
    LIBERAL.iter().try_for_each(|key| sysctl::ensure_on_node(key, "1")).map_err(Error::Sysctl)
}
