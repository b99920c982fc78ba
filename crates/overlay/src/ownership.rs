//! The marks by which owned routes and devices are found.

/// The protocol number of owned routes (`ip route show proto 112`). iproute2 assigns it to no routing daemon.
pub const PROTOCOL: u8 = 112;
/// The alias of owned devices.
pub(crate) const ALIAS: &str = "podwire overlay";
