//! Networks with exceptions, as networks that do not overlap.

use ipnet::IpNet;

/// `network` without `exceptions`: the smallest list of networks that do not overlap.
pub(crate) fn without(network: IpNet, exceptions: &[IpNet]) -> Vec<IpNet> {
    if exceptions.iter().any(|exception| exception.contains(&network)) {
        return Vec::new();
    }
    let inside: Vec<IpNet> =
        exceptions.iter().copied().filter(|exception| network.contains(exception)).collect();
    if inside.is_empty() {
        return vec![network];
    }
    // An exception is smaller than the network, so the network can be split.
    let halves = network.subnets(network.prefix_len() + 1).into_iter().flatten();
    halves.flat_map(|half| without(half, &inside)).collect()
}

/// The same addresses as sorted networks that do not overlap.
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
    fn an_exception_leaves_the_rest() {
        let left = without("10.0.0.0/30".parse().unwrap(), &nets("10.0.0.1/32"));
        assert_eq!(left, nets("10.0.0.0/32 10.0.0.2/31"));
        assert_eq!(without("0.0.0.0/0".parse().unwrap(), &nets("10.0.0.0/8")).len(), 8);
        assert_eq!(without("::/0".parse().unwrap(), &nets("fd00::1/128")).len(), 128);
    }

    #[test]
    fn an_exception_as_large_as_the_network_leaves_nothing() {
        assert_eq!(without("10.0.0.0/8".parse().unwrap(), &nets("10.0.0.0/8")), []);
        assert_eq!(without("10.0.0.0/8".parse().unwrap(), &nets("10.0.0.0/9 10.128.0.0/9")), []);
    }

    #[test]
    fn exceptions_outside_have_no_effect() {
        let left = without("10.0.0.0/8".parse().unwrap(), &nets("192.168.0.0/16 fd00::/8"));
        assert_eq!(left, nets("10.0.0.0/8"));
    }

    #[test]
    fn overlapping_networks_are_merged() {
        assert_eq!(
            disjoint(nets("10.1.0.0/16 10.0.0.0/8 fd00::/8 10.2.3.4/32")),
            nets("10.0.0.0/8 fd00::/8")
        );
    }
}
