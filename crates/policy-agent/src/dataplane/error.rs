//! What can go wrong in a data plane.

/// The result of work on a data plane.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A program that could not be put into the kernel. What was there before still is.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused.
    #[error("network policies are not up to date, those before still hold: {0}")]
    Netlink(#[from] podwire_netlink::Error),
    /// Somebody else changes the firewall all the time.
    #[error("network policies are not up to date: the firewall was changed by others {0} times in a row (look for a program that writes nftables in a loop: `nft monitor`)")]
    Busy(usize),
}

impl Error {
    /// Whether the kernel does not know what it was asked for, such as an expression of a rule.
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Error::Netlink(error) if error.is_unsupported() || error.is_gone())
    }
}
