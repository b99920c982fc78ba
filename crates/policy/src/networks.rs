//! Networks with holes: a block of addresses without others, as networks that do not overlap.

use ipnet::IpNet;

/// `network` without `holes`: as few networks as it takes, none of which overlap.
pub(crate) fn without(network: IpNet, holes: &[IpNet]) -> Vec<IpNet> {
    if holes.iter().any(|hole| hole.contains(&network)) {
        return Vec::new();
    }
    let inside: Vec<IpNet> = holes.iter().copied().filter(|hole| network.contains(hole)).collect();
    if inside.is_empty() {
        return vec![network];
    }
    // A hole is smaller than the network, so the network has halves.
    let halves = network.subnets(network.prefix_len() + 1).into_iter().flatten();
    halves.flat_map(|half| without(half, &inside)).collect()
}

/// The same addresses as networks that do not overlap, in order.
pub(crate) fn disjoint(networks: impl IntoIterator<Item = IpNet>) -> Vec<IpNet> {
    let mut all: Vec<IpNet> =
        IpNet::aggregate(&networks.into_iter().map(|network| network.trunc()).collect());
    all.sort();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(text: &str) -> Vec<IpNet> {
        text.split_whitespace().map(|net| net.parse().unwrap()).collect()
    }

    #[test]
    fn a_hole_leaves_the_rest() {
        let left = without("10.0.0.0/30".parse().unwrap(), &nets("10.0.0.1/32"));
        assert_eq!(left, nets("10.0.0.0/32 10.0.0.2/31"));
        assert_eq!(without("0.0.0.0/0".parse().unwrap(), &nets("10.0.0.0/8")).len(), 8);
        assert_eq!(without("::/0".parse().unwrap(), &nets("fd00::1/128")).len(), 128);
    }

    #[test]
    fn a_hole_as_large_as_the_network_leaves_nothing() {
        assert_eq!(without("10.0.0.0/8".parse().unwrap(), &nets("10.0.0.0/8")), []);
        assert_eq!(without("10.0.0.0/8".parse().unwrap(), &nets("10.0.0.0/9 10.128.0.0/9")), []);
    }

    #[test]
    fn holes_elsewhere_are_no_holes() {
        let left = without("10.0.0.0/8".parse().unwrap(), &nets("192.168.0.0/16 fd00::/8"));
        assert_eq!(left, nets("10.0.0.0/8"));
    }

    #[test]
    fn overlapping_networks_become_one() {
        assert_eq!(
            disjoint(nets("10.1.0.0/16 10.0.0.0/8 fd00::/8 10.2.3.4/32")),
            nets("10.0.0.0/8 fd00::/8")
        );
    }
}
