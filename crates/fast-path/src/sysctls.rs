//! The sysctls of conntrack that the fast path needs.

use podwire_kernel::fast_path::CONNTRACK_SYSCTLS;
use podwire_kernel::sysctl;

use crate::error::{Error, Result};

/// Fails if the kernel lacks a sysctl, or if it cannot be set.
pub(crate) fn make_conntrack_liberal() -> Result<()> {
    CONNTRACK_SYSCTLS.iter().try_for_each(|key| sysctl::ensure_on_node(key, "1")).map_err(Error::Sysctl)
}
