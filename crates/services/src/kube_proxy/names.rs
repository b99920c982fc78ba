//! The names of kube-proxy's objects.

use podwire_netlink::nft::{Family, Table};

/// Its tables in nftables mode.
pub(super) const TABLES: [Table; 2] =
    [Table::named(Family::Ip, "kube-proxy"), Table::named(Family::Ip6, "kube-proxy")];

/// The tables of iptables that have its chains in iptables and ipvs mode.
pub(super) const IPTABLES: [&str; 3] = ["nat", "filter", "mangle"];

/// The device that has all Service addresses in ipvs mode.
pub(super) const DEVICE: &str = "kube-ipvs0";

/// Its chains in iptables, in all modes and versions.
const CHAINS: [&str; 15] = [
    "KUBE-SERVICES",
    "KUBE-NODEPORTS",
    "KUBE-EXTERNAL-SERVICES",
    "KUBE-FORWARD",
    "KUBE-POSTROUTING",
    "KUBE-MARK-MASQ",
    "KUBE-MARK-DROP",
    "KUBE-PROXY-FIREWALL",
    "KUBE-PROXY-CANARY",
    "KUBE-NODE-PORT",
    "KUBE-LOAD-BALANCER",
    "KUBE-FIRE-WALL",
    "KUBE-SOURCE-RANGES-FIREWALL",
    "KUBE-IPVS-FILTER",
    "KUBE-IPVS-OUT-FILTER",
];
/// The beginnings of the names of chains that belong to one Service or endpoint.
const PREFIXES: [&str; 6] = ["KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-", "KUBE-XLB-"];

/// Whether a chain of iptables is kube-proxy's. Others have chains with the same first word: the kubelet
/// (`KUBE-FIREWALL`, `KUBE-IPTABLES-HINT`, `KUBE-KUBELET-CANARY`), and kube-router, also in k3s, for network policies.
pub(super) fn is_proxy_chain(name: &str) -> bool {
    CHAINS.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_chains_of_kube_proxy_are_its() {
        let own = "KUBE-SERVICES KUBE-SVC-ERIFXISQEP7F7OF4 KUBE-SEP-A KUBE-EXT-A KUBE-FW-A KUBE-SVL-A KUBE-PROXY-CANARY \
             KUBE-NODEPORTS KUBE-NODE-PORT KUBE-MARK-MASQ KUBE-IPVS-FILTER";
        let foreign = "KUBE-FIREWALL KUBE-IPTABLES-HINT KUBE-KUBELET-CANARY KUBE-ROUTER-INPUT KUBE-POD-FW-A \
             KUBE-NWPLCY-A CNI-HOSTPORT-DNAT DOCKER KUBE- PREROUTING";
        for (names, expected) in [(own, true), (foreign, false)] {
            for name in names.split_whitespace() {
                assert_eq!(is_proxy_chain(name), expected, "{name}");
            }
        }
    }
}
