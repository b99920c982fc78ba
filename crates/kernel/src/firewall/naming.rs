//! Names of the sets and chains for pod networks.

use ipnet::IpNet;
use podwire_ip::IpFamily;
use podwire_netlink::nft::{Family, IpTerms};

/// The nftables family of a network.
pub(super) fn nft_family(net: &IpNet) -> Family {
    IpFamily::of_net(*net).packet_family()
}

/// Whether a pod's network is only its own address (a /32 or /128).
pub(super) fn is_single_address(net: &IpNet) -> bool {
    net.prefix_len() == net.max_prefix_len()
}

/// The name of the set and the chain for one pod network: `net4_10.1.0.0_16`. Such names cannot contain colons. All
/// pods with a single-address network share one: `net4_alone`.
pub(super) fn set_name(prefix: &str, net: &IpNet) -> String {
    let digit = IpFamily::of_net(*net).digit();
    if is_single_address(net) {
        return format!("{prefix}{digit}_alone");
    }
    format!("{prefix}{digit}_{}_{}", net.network().to_string().replace(':', "_"), net.prefix_len())
}
